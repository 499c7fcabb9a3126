// Package storagetest is the contract of [pawl.Storage] in executable form. A
// storage that passes [Run] is a storage, whoever wrote it.
package storagetest
