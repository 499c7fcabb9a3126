package planted

import "path/filepath"

// SkewEnv holds by how many seconds the wall clock of a process is wrong, if its program
// was built with the overlay of [WrongClock].
const SkewEnv = "PAWL_TORTURE_SKEW"

// WrongClock writes an overlay that makes time.Now wrong, but not what it says of time
// that passes, for the Go in a folder.
func WrongClock(goroot, dir string) (string, error) {
	const now = "\tsec, nsec, mono := runtimeNow()\n\tif mono == 0 {\n\t\treturn Time{uint64(nsec), sec + unixToInternal, Local}\n"
	const wrong = "\tsec, nsec, mono := runtimeNow()\n\tsec += skew\n\tif mono == 0 {\n\t\treturn Time{uint64(nsec), sec + unixToInternal, Local}\n"
	return overlay(filepath.Join(goroot, "src", "time", "time.go"), [][2]string{{now, wrong}, {"\nfunc Now() Time {\n", skewSource + "func Now() Time {\n"},
		{"\t\"math/bits\"\n", "\t\"math/bits\"\n\t\"syscall\"\n"}}, dir)
}

// skewSource stands before Now. Variables are set before any other package can ask.
const skewSource = `
var skew = func() (n int64) {
	text, _ := syscall.Getenv("` + SkewEnv + `")
	sign := int64(1)
	if text != "" && text[0] == '-' {
		sign, text = -1, text[1:]
	}
	for _, c := range []byte(text) {
		n = 10*n + int64(c-'0')
	}
	return sign * n
}()

`
