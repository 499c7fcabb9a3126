//go:build !linux

package testserver

import "syscall"

// attributes have a program run as an account. It outlives a parent that is killed.
func attributes(as *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: as}
}
