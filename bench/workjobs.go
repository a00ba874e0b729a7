package main

// A job is what agents do all day. All are done one after the other in one directory, and find there
// what earlier ones have left; prepare does not count. $FILES says how large a tree is, and $INPUT has
// makeInput as make.py, a project of npm's and npm's cache.
type job struct{ name, prepare, run string }

var jobs = []job{
	{"git init, add, commit", `python3 $INPUT/make.py tree $FILES`, `git init -q . && git add -A && git -c user.name=a -c user.email=a@b -c gc.auto=0 commit -qm all`},
	{"git status, diff", `for f in tree/00*/f1*; do echo more >> $f; done`, `git status --porcelain; git diff`},
	{"git clone --local", ``, `git clone -q --local . ../clone`},
	{"cp -a", `rm -rf .git ../clone`, `cp -a tree copy`},
	{"find", ``, `find tree -type f -size +1k`},
	{"ripgrep", ``, `rg -c 'needle 7' tree`},
	{"tar, out and in", `mkdir in`, `tar -cf all.tar tree && tar -xf all.tar -C in`},
	{"rm -rf", `rm -rf in copy all.tar`, `rm -rf tree`},
	{"unpacking like pip", `python3 $INPUT/make.py zip $((FILES / 2))`, `python3 -m zipfile -e all.zip .`},
	{"unittest, with files", `rm -rf package all.zip; python3 $INPUT/make.py tests $((FILES * 3 / 40))`, `python3 -m unittest -q 2>&1`},
	{"python with many imports", ``, `for i in 1 2 3 4 5; do python3 -c 'import asyncio, ctypes, email.message, http.server, json, multiprocessing, sqlite3, ssl, unittest.mock, urllib.request, xml.dom.minidom'; done`},
	{"gcc, make -j2", `python3 $INPUT/make.py c $((FILES / 40))`, `make -s -j2`},
	{"sqlite, a commit each", `sqlite3 data.db 'create table t (n)'`, `for i in $(seq $((FILES / 10))); do echo "insert into t values ($i);"; done | sqlite3 data.db`},
	{"npm ci", `cp $INPUT/node/package*.json .`, `npm ci --offline --cache $INPUT/npm --ignore-scripts --no-audit --no-fund --silent`},
	{"tsc", `python3 $INPUT/make.py ts 100`, `node_modules/.bin/tsc --noEmit --strict --target es2022 --module nodenext --moduleResolution nodenext --types node ts/*.ts`},
	{"vite build", `echo '<script type="module" src="/ts/main.ts"></script>' > index.html`, `node_modules/.bin/vite build --logLevel error`},
	{"jest", `python3 $INPUT/make.py jest 20`, `node_modules/.bin/jest --silent 2>&1`},
}

// makeInput makes a kind of input in the working directory: so many files of it.
const makeInput = `import os, sys, zipfile
kind, n = sys.argv[1], int(sys.argv[2])
def put(name, text):
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    with open(name, "w") as f: f.write(text)
def words(i): return "".join("line %d has needle %d\n" % (k, (i * 31 + k) % 997) for k in range(10 + i % 90))
if kind == "tree":
    for i in range(n): put("tree/%03d/f%d.txt" % (i // 50, i), words(i))
elif kind == "zip":
    with zipfile.ZipFile("all.zip", "w", zipfile.ZIP_DEFLATED) as z:
        for i in range(n): z.writestr("package/%03d/m%d.py" % (i // 50, i), words(i))
elif kind == "tests":
    put("test_all.py", "import tempfile, unittest\nclass T(unittest.TestCase):\n" + "".join(
        "    def test_%d(self):\n        with tempfile.NamedTemporaryFile('w+') as f:\n            f.write('x' * %d); f.flush(); f.seek(0)\n            self.assertEqual(len(f.read()), %d)\n" % (i, i, i) for i in range(n)))
elif kind == "c":
    for i in range(n): put("f%d.c" % i, "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nint f%d(int n) { char b[64]; snprintf(b, sizeof b, \"%%d\", n); return (int)strlen(b) + %d; }\n" % (i, i))
    put("Makefile", "OBJS = %s\nall: $(OBJS)\n\tar rcs all.a $(OBJS)\n" % " ".join("f%d.o" % i for i in range(n)))
elif kind == "ts":
    for i in range(n): put("ts/m%d.ts" % i, "export interface T%d { n: number; s: string }\nexport function f%d(t: T%d): string { return t.s.repeat(t.n) + %d }\n" % (i, i, i, i))
    put("ts/main.ts", "".join("import { f%d } from './m%d.js'\n" % (i, i) for i in range(n)) + "console.log([%s])\n" % ", ".join("f%d({ n: %d, s: 'x' })" % (i, i) for i in range(n)))
elif kind == "jest":
    for i in range(n): put("t%d.test.js" % i, "const fs = require('fs'), os = require('os'), path = require('path')\nfor (let k = 0; k < 10; k++) test('t' + k, () => { const f = path.join(os.tmpdir(), 't%d-' + k); fs.writeFileSync(f, 'x'); expect(fs.readFileSync(f, 'utf8')).toBe('x'); fs.unlinkSync(f) })\n" % i)
`
