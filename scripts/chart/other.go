//go:build !chart

// Command chart checks the Helm chart. Build it with the tag chart, as make chart does: the types
// of Kubernetes take half a minute to compile, and nothing else needs them.
package main

import "log"

func main() { log.Fatal("chart: it needs the types of Kubernetes; run make chart") }
