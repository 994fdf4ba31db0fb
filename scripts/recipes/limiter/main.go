// Command limiter answers proxies by package forwardauth, with a policy file and a store on Redis.
package main

import (
	"flag"
	"log"
	"net/http"

	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/httplimit/forwardauth"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
	"github.com/penstock/penstock/redisstore"
)

func main() {
	listen := flag.String("api", "127.0.0.1:8181", "the `address` to listen on")
	config := flag.String("config", "", "the policy `file`")
	address := flag.String("store", "", "the `URL` of Redis")
	flag.Parse()
	if err := serve(*listen, *config, *address); err != nil {
		log.Fatal("limiter: ", err)
	}
}

func serve(listen, config, address string) error {
	file, err := policyfile.Load(config, policyfile.Options{Sections: []policyfile.Section{httplimit.DefaultConfig()}})
	if err != nil {
		return err
	}
	redis, err := redisstore.Open(address, redisstore.Options{})
	if err != nil {
		return err
	}
	store, err := guard.Standard(redis, guard.Options{Limits: file.Rules.Settings, Instances: 1})
	if err != nil {
		return err
	}
	handler, err := forwardauth.New(store, func() *policy.Rules { return file.Rules }, forwardauth.Options{
		HasFallback: true, Misused: func(err error) { log.Print("limiter: ", err) },
	})
	if err != nil {
		return err
	}
	return http.ListenAndServe(listen, handler)
}
