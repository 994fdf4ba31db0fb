package resplimit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxNameBytes is at least the length of the name of every command and subcommand.
const maxNameBytes = 24

// command executes a command, or adds a job for it. It returns false if the connection must be
// closed.
func (c *client) command(b *batch, args [][]byte) (isOpen bool) {
	var upper [maxNameBytes]byte
	name := upper[:copy(upper[:], args[0])]
	if len(args[0]) > maxNameBytes {
		name = nil
	}
	toUpper(name)
	if !c.isAuthenticated && needsUser(name) {
		c.reportAuthFailure(noPassword)
		c.fail(b, "NOAUTH Authentication required.")
		return true
	}
	switch string(name) {
	case "CL.THROTTLE":
		c.throttle(b, cellThrottle, args)
		return true
	case "THROTTLE":
		c.throttle(b, crabThrottle, args)
		return true
	case "PENSTOCK.CHECK":
		c.addNamedJob(b, args)
		return true
	case "DEL", "UNLINK":
		c.del(b, args)
		return true
	}
	c.decide(b)
	b.respVersion = c.respVersion
	return c.execute(b, string(name), args)
}

// needsUser reports whether a command is for authenticated clients only.
func needsUser(name []byte) bool {
	switch string(name) {
	case "AUTH", "HELLO", "QUIT", "RESET", "POST", "HOST:":
		return false
	}
	return true
}

// execute executes a command that needs no decision. It returns false if the connection must be
// closed.
func (c *client) execute(b *batch, name string, args [][]byte) (isOpen bool) {
	switch name {
	case "POST", "HOST:":
		return false // as in Redis: a web page could make a browser send commands in the body of an HTTP request
	case "QUIT":
		b.simple("OK")
		return false
	case "RESET":
		c.reset()
		b.respVersion = c.respVersion
		b.simple("RESET")
	case "AUTH":
		return c.auth(b, args)
	case "HELLO":
		return c.hello(b, args)
	case "PING":
		switch len(args) {
		case 1:
			b.simple("PONG")
		case 2:
			b.bulk(string(args[1]))
		default:
			b.fail(wrongArgumentCount(args[0]))
		}
	case "ECHO":
		if len(args) != 2 {
			b.fail(wrongArgumentCount(args[0]))
		} else {
			b.bulk(string(args[1]))
		}
	case "SELECT":
		c.selectDB(b, args)
	case "CLIENT":
		c.clientCommand(b, args)
	case "COMMAND":
		describeCommands(b, args)
	case "CONFIG":
		if sub := subcommand(args); sub == "GET" {
			b.pairs(0)
		} else {
			failSubcommand(b, args)
		}
	case "CLUSTER":
		b.fail("ERR This instance has cluster support disabled")
	case "INFO":
		b.text(c.server.info())
	default:
		b.fail(unknownCommand(args))
	}
	return true
}

// fail decides the earlier commands, and then writes an error after their replies.
func (c *client) fail(b *batch, text string) {
	c.decide(b)
	b.fail(text)
}

func toUpper(text []byte) {
	for i, c := range text {
		if c >= 'a' && c <= 'z' {
			text[i] = c - ('a' - 'A')
		}
	}
}

// subcommand returns the second word in capitals, or "" if there is none or it is too long.
func subcommand(args [][]byte) string {
	if len(args) < 2 || len(args[1]) > maxNameBytes {
		return ""
	}
	return strings.ToUpper(string(args[1]))
}

func failSubcommand(b *batch, args [][]byte) {
	if len(args) < 2 {
		b.fail(wrongArgumentCount(args[0]))
		return
	}
	b.fail(fmt.Sprintf("ERR unknown subcommand '%.128s'. Try %s HELP.", args[1], strings.ToUpper(string(args[0]))))
}

// wrongArgumentCount returns the error of Redis for a command with too few or too many arguments.
func wrongArgumentCount(name []byte) string {
	return "ERR wrong number of arguments for '" + strings.ToLower(string(name)) + "' command"
}

// unknownCommand returns the error of Redis, with its bounds: 128 bytes of the name, and about 128
// bytes of the arguments.
func unknownCommand(args [][]byte) string {
	const most = 128
	var list strings.Builder
	for _, arg := range args[1:] {
		if list.Len() >= most {
			break
		}
		list.WriteByte('\'')
		list.Write(cString(arg, most-(list.Len()-1))) // the quote before it does not count
		list.WriteString("' ")
	}
	return fmt.Sprintf("ERR unknown command '%s', with args beginning with: %s", cString(args[0], most), list.String())
}

// cString returns at most n bytes of a text, up to its first NUL.
func cString(text []byte, n int) []byte {
	for i := range min(len(text), n) {
		if text[i] == 0 {
			return text[:i]
		}
	}
	return text[:min(len(text), n)]
}

const (
	errNoPassword = "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?"
	errWrongPass  = "WRONGPASS invalid username-password pair or user is disabled."
	errNoAuth     = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> " +
		"option can be used to authenticate the client and select the RESP protocol version at the same time"
)

// maxWrongPasswords is how many wrong passwords a connection may try.
const maxWrongPasswords = 10

func (c *client) auth(b *batch, args [][]byte) (isOpen bool) {
	user, password := []byte(defaultUser), args[len(args)-1]
	switch {
	case len(args) == 3:
		user = args[1]
	case len(args) != 2:
		b.fail(wrongArgumentCount(args[0]))
		return true
	case len(c.server.credentials) == 0:
		c.reportAuthFailure(wrongPassword)
		b.fail(errNoPassword)
		return true
	}
	if c.authenticate(user, password) {
		b.simple("OK")
		return true
	}
	b.fail(errWrongPass)
	return c.wrongPasswords < maxWrongPasswords
}

func (c *client) authenticate(user, password []byte) bool {
	if !c.server.credentials.hasMatch(user, password) {
		c.wrongPasswords++
		c.reportAuthFailure(wrongPassword)
		return false
	}
	c.setUser(string(user), true)
	return true
}

// redisVersion is the version of Redis whose replies the server imitates. Clients read it to choose
// which commands they send.
const redisVersion = "7.0.0"

// hello executes HELLO [version [AUTH user password] [SETNAME name]].
func (c *client) hello(b *batch, args [][]byte) (isOpen bool) {
	respVersion, name, options := c.respVersion, c.name, [][]byte(nil)
	if len(args) > 1 {
		n, ok := parseInt(args[1])
		switch {
		case !ok:
			b.fail("ERR Protocol version is not an integer or out of range")
			return true
		case n != 2 && n != 3:
			b.fail("NOPROTO unsupported protocol version")
			return true
		}
		respVersion, options = int(n), args[2:]
	}
	var user, password []byte
	for len(options) > 0 {
		switch option := strings.ToUpper(string(options[0])); {
		case option == "AUTH" && len(options) >= 3:
			user, password, options = options[1], options[2], options[3:]
		case option == "SETNAME" && len(options) >= 2 && isClientName(options[1]):
			name, options = string(options[1]), options[2:]
		case option == "SETNAME" && len(options) >= 2:
			b.fail(errClientName)
			return true
		default:
			b.fail(fmt.Sprintf("ERR Syntax error in HELLO option '%.128s'", options[0]))
			return true
		}
	}
	if user != nil && !c.authenticate(user, password) {
		b.fail(errWrongPass)
		return c.wrongPasswords < maxWrongPasswords
	}
	if !c.isAuthenticated {
		c.reportAuthFailure(noPassword)
		b.fail(errNoAuth)
		return true
	}
	c.respVersion, c.name = respVersion, name
	b.respVersion = respVersion
	c.describeServer(b)
	return true
}

func (c *client) describeServer(b *batch) {
	bulks := func(texts ...string) {
		for _, text := range texts {
			b.bulk(text)
		}
	}
	b.pairs(7)
	bulks("server", "penstock", "version", redisVersion, "proto")
	b.integer(int64(c.respVersion))
	bulks("id")
	b.integer(c.id)
	bulks("mode", "standalone", "role", "master", "modules")
	b.array(0)
}

// selectDB executes SELECT. The only database is 0. SELECT of another one is an error, because
// clients that use several databases would share counters without noticing it.
func (c *client) selectDB(b *batch, args [][]byte) {
	if len(args) != 2 {
		b.fail(wrongArgumentCount(args[0]))
		return
	}
	switch n, ok := parseInt(args[1]); {
	case !ok:
		b.fail(errNotInteger)
	case n != 0:
		b.fail("ERR DB index is out of range")
	default:
		b.simple("OK")
	}
}

const errClientName = "ERR Client names cannot contain spaces, newlines or special characters."

func isClientName(name []byte) bool {
	return !slices.ContainsFunc(name, func(c byte) bool { return c < '!' || c > '~' })
}

// clientCommand executes CLIENT. Requests for features that do not exist here get the reply OK.
// This reply is correct, because nothing is tracked or evicted.
func (c *client) clientCommand(b *batch, args [][]byte) {
	switch sub := subcommand(args); {
	case sub == "SETNAME" && len(args) == 3:
		if !isClientName(args[2]) {
			b.fail(errClientName)
			return
		}
		c.name = string(args[2])
		b.simple("OK")
	case sub == "GETNAME" && len(args) == 2:
		if c.name == "" {
			b.null()
		} else {
			b.bulk(c.name)
		}
	case sub == "ID" && len(args) == 2:
		b.integer(c.id)
	case sub == "INFO" && len(args) == 2:
		b.text(fmt.Sprintf("id=%d addr=%s name=%s user=%s db=0 resp=%d\n", c.id, c.conn.RemoteAddr(), c.name, c.user, c.respVersion))
	case sub == "SETINFO", sub == "NO-EVICT", sub == "NO-TOUCH", sub == "TRACKING":
		b.simple("OK")
	default:
		failSubcommand(b, args)
	}
}

// describeCommands executes COMMAND: its list is empty, so clients assume an old server.
func describeCommands(b *batch, args [][]byte) {
	switch sub := subcommand(args); {
	case len(args) == 1, sub == "INFO", sub == "LIST":
		b.array(0)
	case sub == "COUNT":
		b.integer(0)
	case sub == "DOCS":
		b.pairs(0)
	default:
		failSubcommand(b, args)
	}
}

// info returns the reply to INFO. Some clients wait until loading is 0.
func (s *Server) info() string {
	return "# Server\r\nredis_version:" + redisVersion + "\r\nserver_name:penstock\r\nredis_mode:standalone\r\nuptime_in_seconds:" +
		strconv.FormatInt(int64(time.Since(s.startedAt)/time.Second), 10) +
		"\r\n\r\n# Clients\r\nconnected_clients:" + strconv.Itoa(s.Connections()) +
		"\r\n\r\n# Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n"
}
