#include "textflag.h"

// As on amd64.
TEXT ·entry(SB), NOSPLIT|NOFRAME, $0
	MOVD $0, R0
	MOVD $1030, R1 // F_DUPFD_CLOEXEC
	MOVD $255, R2
	MOVD $25, R8 // fcntl
	SVC
	MOVD 0(RSP), R3 // argc
	CMP $3, R3
	BLT usage
	MOVD 16(RSP), R0 // the program: argv[1]
	ADD $24, RSP, R1 // its argv: from argv[2] on
	ADD $16, RSP, R2
	ADD R3<<3, R2, R2 // its environment: after argv's nil
	MOVD $221, R8 // execve
	SVC
usage:
	MOVD $127, R0
	MOVD $94, R8 // exit_group
	SVC
	BRK
