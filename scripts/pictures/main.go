// Command pictures draws the pictures of docs/pictures that show saved measurements, as SVG with a
// light and a dark color scheme. examples/outage -save writes outage.json, and the bench program
// writes bench.json. The other pictures of the folder are written by hand.
//
//	go run ./pictures ../docs/pictures
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
)

// pictures has a function for each picture, by the name of the file. The function returns the SVG.
// dir is the folder of the measurements.
var pictures = map[string]func(dir string) (string, error){"outage.svg": outage, "load.svg": load}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: pictures FOLDER")
	}
	for name, draw := range pictures {
		text, err := draw(os.Args[1])
		if err == nil {
			err = os.WriteFile(filepath.Join(os.Args[1], name), []byte(text), 0o644)
		}
		if err != nil {
			log.Fatalf("%s: %v", name, err)
		}
		fmt.Println(filepath.Join(os.Args[1], name))
	}
}
