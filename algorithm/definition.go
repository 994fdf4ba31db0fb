package algorithm

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
)

const (
	letters     = "abcdefghijklmnopqrstuvwxyz"
	luaKeywords = " and break do else elseif end false for function goto if in local nil not or repeat return then true until while "
)

// checkDefinition returns an error if the arguments of Define break its rules. state is the type of
// the algorithm's state.
func (a *Algorithm) checkDefinition(state reflect.Type) error {
	isIdentifier := strings.Trim(a.name, letters+"0123456789_") == "" && strings.IndexAny(a.name, letters) == 0
	if !isIdentifier || strings.Contains(luaKeywords, " "+a.name+" ") {
		return errors.New("the name must be one that a Lua function can have; write a-z, 0-9 and _, as in cool_down, and add the option Title for another name in policies")
	}
	if strings.HasSuffix(a.name, acrossSuffix) {
		return fmt.Errorf("names that end in %s are those of Across; choose another", acrossSuffix)
	}
	for _, other := range append(All(), SubWindow(1), CalendarWindow(Day, time.UTC)) {
		if a.name == other.name || a.title == other.title {
			return fmt.Errorf("the built-in algorithm %s has this name or title; choose another", other.title)
		}
	}
	if err := checkState(state); err != nil {
		return err
	}
	code := "" // without comments
	for line := range strings.SplitSeq(a.lua, "\n") {
		line, _, _ = strings.Cut(line, "--")
		code += "\n" + line
	}
	switch {
	case a.lua == "":
	case !strings.Contains(code, "\nlocal function "+a.name+"("):
		return fmt.Errorf("its Lua has no function of this name; write it as local function %s(…) at the beginning of a line", a.name)
	case strings.Contains(code, "redis.call") || strings.Contains(code, "redis.pcall"):
		return errors.New("its Lua calls Redis; remove redis.call, because the store reads and saves the state")
	}
	return nil
}

// checkState returns an error if a state of a type is not few integers.
func checkState(state reflect.Type) error {
	const most = 6
	fields := []reflect.StructField{{Name: "it", Type: state}}
	if state.Kind() == reflect.Struct {
		fields = reflect.VisibleFields(state)
	}
	if len(fields) > most {
		return fmt.Errorf("the state %v has %d fields; it must have at most %d", state, len(fields), most)
	}
	for _, f := range fields {
		if kind := f.Type.Kind(); kind < reflect.Int || kind > reflect.Uint64 {
			return fmt.Errorf("the state %v: %s is a %v; a state has only integers, such as int64", state, f.Name, f.Type)
		}
	}
	return nil
}
