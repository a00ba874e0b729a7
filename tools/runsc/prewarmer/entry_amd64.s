#include "textflag.h"

// entry is where the kernel starts the program (-ldflags=-E=main.entry). The stack has argc, argv
// with a nil at its end, and the environment. For the table of file descriptors, see
// ../entry_amd64.s; an exec keeps its size.
TEXT ·entry(SB), NOSPLIT|NOFRAME, $0
	MOVQ $0, DI
	MOVQ $1030, SI // F_DUPFD_CLOEXEC
	MOVQ $255, DX
	MOVQ $72, AX // fcntl
	SYSCALL // what it opens ends with the exec
	MOVQ 0(SP), CX // argc
	CMPQ CX, $3
	JLT usage
	MOVQ 16(SP), DI // the program: argv[1]
	LEAQ 24(SP), SI // its argv: from argv[2] on
	LEAQ 16(SP)(CX*8), DX // its environment: after argv's nil
	MOVQ $59, AX // execve
	SYSCALL
usage:
	MOVQ $127, DI
	MOVQ $231, AX // exit_group
	SYSCALL
	INT $3
