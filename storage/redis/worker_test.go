package redis_test

import (
	"testing"

	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/internal/workertest"
)

func TestWorker(t *testing.T) { workertest.Run(t, harness(connect(t, testserver.Redis(t)))) }
