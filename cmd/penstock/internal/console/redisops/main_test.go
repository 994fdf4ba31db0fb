package redisops_test

import (
	"testing"

	"github.com/penstock/penstock/internal/testing/redistest"
)

func TestMain(m *testing.M) {
	redistest.Main(m, "github.com/penstock/penstock/cmd/penstock/internal/console/redisops")
}
