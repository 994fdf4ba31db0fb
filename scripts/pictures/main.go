// Command pictures draws the pictures of docs/pictures as SVG, with a light and a dark color
// scheme. Two pictures show saved measurements: examples/outage -save writes outage.json, and the
// bench program writes bench.json.
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
var pictures = map[string]func(dir string) (string, error){
	"architecture.svg": func(string) (string, error) { return architecture(), nil },
	"boundary.svg":     func(string) (string, error) { return boundary() },
	"outage.svg":       outage,
	"load.svg":         load,
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: pictures FOLDER")
	}
	dir := os.Args[1]
	for name, draw := range pictures {
		text, err := draw(dir)
		if err != nil {
			log.Fatalf("%s: %v", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			log.Fatal(err)
		}
		fmt.Println(filepath.Join(dir, name))
	}
}
