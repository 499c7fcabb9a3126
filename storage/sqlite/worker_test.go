package sqlite_test

import (
	"testing"

	"github.com/pawlq/pawl/internal/workertest"
)

func TestWorkerSoon(t *testing.T) { workertest.Soon(t, harness()) }
