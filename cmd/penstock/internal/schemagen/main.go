// Command schemagen writes the JSON Schemas of policy files, of files with cases, and of the values
// of the Helm chart.
package main

import (
	"log"
	"os"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: schemagen POLICY-SCHEMA CASES-SCHEMA VALUES-SCHEMA")
	}
	for i, generate := range []func() ([]byte, error){generate, generateCases, generateValues} {
		text, err := generate()
		if err == nil {
			err = os.WriteFile(os.Args[i+1], text, 0o644)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
}
