// Package grpclimit limits gRPC calls by a policy.
package grpclimit
