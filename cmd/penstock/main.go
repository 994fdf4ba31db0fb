// Command penstock is the gate: a service that puts limits in front of HTTP APIs, and the command line for those who choose them.
package main

func main() {}
