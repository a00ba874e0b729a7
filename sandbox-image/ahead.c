/*
 * ahead is a builtin for bash 5. A shell that calls it waits for a command, and then becomes `bash -c -- COMMAND`, or
 * `bash -l -c COMMAND`: the same variables, options, messages and exit code, without the time that bash takes to start.
 * sandbox-agent starts one when nothing runs (internal/agent/ahead.go):
 *
 *     bash -c -- 'enable -f /usr/lib/daycare-sandbox/ahead.2.so ahead; ahead'
 *
 * Descriptor 3 is a socket. The builtin writes one byte when it is ready. Then it reads a request: its length as four
 * bytes, least significant first, and that many bytes of NUL-terminated strings:
 *
 *     STDIN LOGIN DIR COMMAND ENV...
 *
 * STDIN is "null" if stdin shall be /dev/null, and LOGIN is "login" for a login shell, which then reads its start-up files.
 * On failure the builtin answers with two numbers of four bytes, the stage (spawn.Stage) and errno; otherwise it closes
 * the socket and begins. If the socket is closed, the shell exits.
 *
 * What /proc/PID/cmdline and environ show is changed in place: the command and its environment, as far as they fit
 * where the shell's own were, padded with NULs. So the program that starts the shell fills up both. The options `-c -c`
 * become `-l -c` in a login shell.
 *
 * It is compiled without bash's headers. Its declarations match bash 5.0 to 5.3.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct builtin {
	char *name;
	int (*function)(void *);
	int flags;
	char *const *long_doc;
	const char *short_doc;
	char *handle;
};

extern struct builtin *shell_builtins;
extern int num_shell_builtins;
extern struct builtin *builtin_address_internal(char *, int);

extern void *shell_variables, *shell_functions;
extern void delete_all_contexts(void *);
extern void delete_all_variables(void *);
extern void initialize_shell_variables(char **, int);
extern void initialize_shell_options(int);
extern void initialize_bashopts(int);
extern void *bind_variable(const char *, char *, int);
extern char *get_string_value(const char *);
extern void set_working_directory(char *);
extern int unbind_variable(const char *);
extern int set_login_shell(char *, int);
extern int set_job_control(int);
extern int maybe_execute_file(const char *, int);

extern char **environ, **shell_environment;
extern char *command_execution_string, *shell_name;
extern time_t shell_start_time;
extern struct timeval shellstart;
extern int parse_and_execute_level, indirection_level, executing_builtin, last_command_exit_value;
extern int login_shell, startup_state, executing, line_number;
extern sigjmp_buf top_level;
extern int parse_and_execute(char *, const char *, int);
extern void exit_shell(int) __attribute__((noreturn));

enum { SOCKET = 3, ENABLED = 1, NOHIST = 0x004, RESETLINE = 0x010 };

static void read_full(char *to, size_t size) {
	while (size > 0) {
		ssize_t n = read(SOCKET, to, size);
		if (n > 0)
			to += n, size -= (size_t)n;
		else if (n == 0 || errno != EINTR)
			_exit(0); /* the other end is gone */
	}
}

enum { STAGE_PREPARE = 1, STAGE_DIR = 2 };

static void give_up(int stage, int error) {
	int32_t answer[2] = {stage, error};
	ssize_t written = write(SOCKET, answer, sizeof answer);
	_exit(written == (ssize_t)sizeof answer ? 126 : 125);
}

static void *need(void *memory) {
	if (memory == NULL)
		give_up(STAGE_PREPARE, ENOMEM);
	return memory;
}

static char *next(char **at) {
	char *text = *at;
	*at += strlen(text) + 1;
	return text;
}

/* list returns all strings up to end. */
static char **list(char *at, const char *end) {
	size_t count = 0;
	for (char *entry = at; entry < end; next(&entry))
		count++;
	char **strings = need(calloc(count + 1, sizeof *strings));
	for (size_t i = 0; i < count; i++)
		strings[i] = next(&at);
	return strings;
}

/* show makes /proc show the command and its environment, each as far as there is room. */
static void show(const char *command, char **environment, int login) {
	size_t room = strlen(command_execution_string);
	char *options = command_execution_string - sizeof "-c\0-c";
	if (login && memcmp(options, "-c\0-c", sizeof "-c\0-c") == 0)
		options[1] = 'l';
	memset(command_execution_string, 0, room);
	memccpy(command_execution_string, command, 0, room);
	if (shell_environment[0] == NULL)
		return;
	char *at = shell_environment[0], *end = at;
	for (char **entry = shell_environment; *entry != NULL; entry++)
		end = *entry + strlen(*entry);
	memset(at, 0, (size_t)(end - at));
	for (; *environment != NULL && at < end; environment++) {
		char *after = memccpy(at, *environment, 0, (size_t)(end - at));
		at = after != NULL ? after : end;
	}
}

/* forget puts the shell into the state of one that has just started with the environment. */
static void forget(char **environment) {
	char *physical = getcwd(NULL, 0), *name = shell_name, *bash = get_string_value("BASH");
	if (bash != NULL && bash[0] == '/')
		shell_name = need(strdup(bash)); /* otherwise bash looks for itself again, in the same places of the same PATH */
	delete_all_contexts(shell_variables);
	delete_all_variables(shell_functions);
	environ = shell_environment = environment;
	gettimeofday(&shellstart, NULL);
	shell_start_time = shellstart.tv_sec;
	if (physical != NULL)
		set_working_directory(physical);
	initialize_shell_variables(environment, 0);
	shell_name = name;
	initialize_shell_options(0);
	initialize_bashopts(0);
	unbind_variable("PS1");
	unbind_variable("PS2");
	struct builtin *own = builtin_address_internal("ahead", 1);
	if (own != NULL) {
		struct builtin *end = shell_builtins + num_shell_builtins; /* an empty one follows the last builtin */
		memmove(own, own + 1, (size_t)(end - own) * sizeof *own);
		num_shell_builtins--;
	}
}

/* A start-up file may end in a jump to the top level. With a value below EXITPROG the shell goes on with its command;
 * otherwise it exits. */
enum { EXITPROG = 3 };

/* log_in reads the files that a login shell reads before its command, as a shell does when it starts. */
static void log_in(void) {
	sigjmp_buf outer;
	memcpy(&outer, &top_level, sizeof outer);
	startup_state = executing = line_number = 0;
	int jumped = sigsetjmp(top_level, 0);
	if (jumped >= EXITPROG)
		exit_shell(last_command_exit_value);
	if (jumped == 0) {
		maybe_execute_file("/etc/profile", 1);
		if (maybe_execute_file("~/.bash_profile", 1) == 0 && maybe_execute_file("~/.bash_login", 1) == 0)
			maybe_execute_file("~/.profile", 1);
	} else {
		set_job_control(0);
	}
	memcpy(&top_level, &outer, sizeof outer);
	startup_state = 2;
	executing = 1;
}

static int ahead_builtin(void *words) {
	uint32_t size;
	(void)words;
	if (write(SOCKET, "", 1) != 1)
		_exit(0);
	read_full((char *)&size, sizeof size);
	char *request = need(malloc((size_t)size + 1));
	read_full(request, size);
	request[size] = 0;

	char *at = request, *end = request + size;
	int null_stdin = strcmp(next(&at), "null") == 0, login = strcmp(next(&at), "login") == 0;
	char *dir = next(&at);
	if (chdir(dir) != 0)
		give_up(STAGE_DIR, errno);
	if (null_stdin) {
		close(0);
		if (open("/dev/null", O_RDWR) != 0)
			give_up(STAGE_PREPARE, errno);
	}
	close(SOCKET);
	char *command = next(&at);
	char **environment = list(at, end);
	show(command, environment, login);
	login_shell = -login; /* as -l sets it */
	set_login_shell("login_shell", login);
	forget(environment);
	bind_variable("BASH_EXECUTION_STRING", command, 0);
	/* As if no command had called this: then bash executes the last command of a command line without a fork. */
	parse_and_execute_level = indirection_level = executing_builtin = last_command_exit_value = 0;
	if (login)
		log_in();
	parse_and_execute(need(strdup(command)), "-c", NOHIST | RESETLINE);
	exit_shell(last_command_exit_value);
}

static char *const documentation[] = {"Wait for a command.", NULL};

struct builtin ahead_struct = {"ahead", ahead_builtin, ENABLED, documentation, "ahead", NULL};
