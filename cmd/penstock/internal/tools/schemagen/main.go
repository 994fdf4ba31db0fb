// Command schemagen writes three JSON Schemas: of policy files, of the case files of penstock test,
// and of the Helm chart's values.
package main

import (
	"log"
	"os"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: schemagen POLICY-SCHEMA CASES-SCHEMA VALUES-SCHEMA")
	}
	for i, generate := range []func() ([]byte, error){generatePolicy, generateCases, generateValues} {
		text, err := generate()
		if err == nil {
			err = os.WriteFile(os.Args[i+1], text, 0o644)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
}
