package redisclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/redis/rueidis"
)

// setPasswordFiles reads the passwords from the files that the options name. The files are read
// again for each new connection, so that a new password needs no restart.
func setPasswordFiles(option *rueidis.ClientOption, query url.Values, readFile func(string) ([]byte, error)) error {
	isSentinelURL := option.Sentinel.MasterSet != ""
	if query.Has("sentinel_password_file") && !isSentinelURL {
		return errors.New("the option \"sentinel_password_file\" needs a URL of Sentinels: redis+sentinel://host:26379/mymaster")
	}
	ofServer := passwordFile{option: "password_file", name: query.Get("password_file"), read: readFile}
	ofSentinel := passwordFile{option: "sentinel_password_file", name: query.Get("sentinel_password_file"), read: readFile}
	if readFile == nil || ofServer.name == "" && ofSentinel.name == "" {
		return nil
	}
	var err error
	if option.Password, err = ofServer.password(option.Password); err != nil {
		return err
	}
	if option.Sentinel.Password, err = ofSentinel.password(option.Sentinel.Password); err != nil {
		return err
	}
	server := rueidis.AuthCredentials{Username: option.Username, Password: option.Password}
	sentinel := rueidis.AuthCredentials{Username: option.Sentinel.Username, Password: option.Sentinel.Password}
	option.AuthCredentialsFn = func(c rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
		credentials, file := server, ofServer
		if _, isSentinel := c.Address.(sentinelAddr); isSentinel {
			credentials, file = sentinel, ofSentinel
		}
		password, err := file.password(credentials.Password)
		if err != nil {
			return rueidis.AuthCredentials{}, NotSent(err)
		}
		credentials.Password = password
		return credentials, nil
	}
	if isSentinelURL {
		markSentinels(option)
	}
	return nil
}

// A passwordFile is a file that an option of the URL names.
type passwordFile struct {
	option, name string
	read         func(string) ([]byte, error)
}

// password returns the password in the file, or a given one if no file is named.
func (f passwordFile) password(given string) (string, error) {
	if f.name == "" {
		return given, nil
	}
	text, err := f.read(f.name)
	if err != nil {
		return "", fmt.Errorf("%s: %w", f.option, err)
	}
	return strings.TrimRight(string(text), "\r\n"), nil
}

// markSentinels makes connections to Sentinels have a sentinelAddr. rueidis requests the
// credentials of servers and of Sentinels by the same function, and passes only the address. It
// dials them with different dialers, but copies these, so a Resolver is the mark.
func markSentinels(option *rueidis.ClientOption) {
	mark := new(net.Resolver) // it resolves names as a nil Resolver does
	option.Sentinel.Dialer.Resolver = mark
	option.DialCtxFn = func(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
		conn, err := dialTCP(ctx, address, dialer, config)
		if err == nil && dialer.Resolver == mark {
			conn = sentinelConn{conn}
		}
		return conn, err
	}
}

type sentinelConn struct{ net.Conn }

// NetConn returns the connection itself, as that of a tls.Conn does.
func (c sentinelConn) NetConn() net.Conn { return c.Conn }

func (c sentinelConn) RemoteAddr() net.Addr { return sentinelAddr{c.Conn.RemoteAddr()} }

type sentinelAddr struct{ net.Addr }
