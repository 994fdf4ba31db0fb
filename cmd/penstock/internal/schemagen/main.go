// Command schemagen writes the JSON Schemas of policy files and of files with cases.
package main

import (
	"log"
	"os"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: schemagen POLICY-SCHEMA CASES-SCHEMA")
	}
	for i, generate := range []func() ([]byte, error){generate, generateCases} {
		text, err := generate()
		if err == nil {
			err = os.WriteFile(os.Args[i+1], text, 0o644)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
}
