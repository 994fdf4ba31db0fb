// Command schema writes the JSON Schema of policies, as package policy reads them, into a file.
package main

import (
	"log"
	"os"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: schema FILE")
	}
	text, err := generate()
	if err == nil {
		err = os.WriteFile(os.Args[1], text, 0o644)
	}
	if err != nil {
		log.Fatal(err)
	}
}
