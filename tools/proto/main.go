// Command proto generates Go code for the given .proto files, each in its file's directory. It
// needs no other program: protocompile does the work of protoc, and protoc-gen-go's own package
// writes the code.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/cmd/protoc-gen-go/internal_gengo"
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	for _, file := range os.Args[1:] {
		if err := generate(file); err != nil {
			fmt.Fprintf(os.Stderr, "proto: %s: %v\n", file, err)
			os.Exit(1)
		}
	}
}

func generate(file string) error {
	dir, name := filepath.Split(file)
	compiler := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(
			&protocompile.SourceResolver{ImportPaths: []string{dir}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(context.Background(), name)
	if err != nil {
		return err
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: []string{name},
		Parameter: proto.String("paths=source_relative")}
	added := map[string]bool{}
	var add func(protoreflect.FileDescriptor)
	add = func(fd protoreflect.FileDescriptor) {
		if added[fd.Path()] {
			return
		}
		added[fd.Path()] = true
		for i := range fd.Imports().Len() {
			add(fd.Imports().Get(i).FileDescriptor)
		}
		var described *descriptorpb.FileDescriptorProto = protoutil.ProtoFromFileDescriptor(fd)
		request.ProtoFile = append(request.ProtoFile, described)
	}
	for _, fd := range compiled {
		add(fd)
	}
	plugin, err := protogen.Options{}.New(request)
	if err != nil {
		return err
	}
	for _, f := range plugin.Files {
		if f.Generate {
			internal_gengo.GenerateFile(plugin, f)
		}
	}
	response := plugin.Response()
	if response.Error != nil {
		return fmt.Errorf("%s", response.GetError())
	}
	for _, made := range response.File {
		content := strings.Replace(made.GetContent(), "// \tprotoc        (unknown)\n", "", 1)
		if err := os.WriteFile(filepath.Join(dir, made.GetName()), []byte(content),
			0o644); err != nil {
			return err
		}
	}
	return nil
}
