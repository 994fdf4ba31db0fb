package service

import (
	"google.golang.org/grpc"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/extauthz"
	"github.com/penstock/penstock/httplimit/forwardauth"
)

func (s *service) registerExtAuthz(r grpc.ServiceRegistrar) error {
	server, err := extauthz.New(s.core.Controller, forwardauth.Options{Misused: s.misused})
	if err != nil {
		return err
	}
	server.Register(r)
	return nil
}
