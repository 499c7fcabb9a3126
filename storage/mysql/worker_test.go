package mysql_test

import (
	"testing"

	"github.com/pawlq/pawl/internal/workertest"
)

func TestWorker(t *testing.T) { workertest.Run(t, harness(t, nil)) }
