//! Makes the client and the server of the gRPC service in `src/store.rs`.
//!
//! The service stands here, and its messages are Rust types that derive `prost::Message`. So nothing
//! needs protoc. The same service as a .proto file:
//!
//!     service Store {
//!       rpc Put(Blob) returns (Receipt);
//!       rpc Upload(stream Blob) returns (Receipt);
//!       rpc Download(Range) returns (stream Blob);
//!       rpc Echo(stream Blob) returns (stream Blob);
//!     }

use tonic_build::manual::{Builder, Method, MethodBuilder, Service};

fn method(name: &str, route: &str, input: &str, output: &str) -> MethodBuilder {
    Method::builder()
        .name(name)
        .route_name(route)
        .input_type(format!("crate::store::{input}"))
        .output_type(format!("crate::store::{output}"))
        .codec_path("tonic_prost::ProstCodec")
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let store = Service::builder()
        .package("exs.example")
        .name("Store")
        .method(method("put", "Put", "Blob", "Receipt").build())
        .method(method("upload", "Upload", "Blob", "Receipt").client_streaming().build())
        .method(method("download", "Download", "Range", "Blob").server_streaming().build())
        .method(
            method("echo", "Echo", "Blob", "Blob").client_streaming().server_streaming().build(),
        )
        .build();
    Builder::new().build_transport(false).compile(&[store]);
}
