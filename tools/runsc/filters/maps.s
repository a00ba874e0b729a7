#include "textflag.h"

// A variable of another package that is not exported has an address all the same. Unlike with
// go:linkname, which would make a variable that is missing, the link fails if gVisor renames one.

DATA ·sentryMap+0(SB)/8, $gvisor·dev∕gvisor∕runsc∕boot∕filter·precompiledPrograms(SB)
GLOBL ·sentryMap(SB), NOPTR, $8

DATA ·goferMap+0(SB)/8, $gvisor·dev∕gvisor∕runsc∕fsgofer∕filter·precompiledPrograms(SB)
GLOBL ·goferMap(SB), NOPTR, $8
