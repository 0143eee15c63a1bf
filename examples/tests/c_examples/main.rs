//! The examples in C, each pair as processes: over plain sockets, over kernel sockets through
//! EXS, and over EXS; with Rust on the other side; and once more under sanitizers.

mod cross;
mod echo;
mod files;
mod gateway;
mod http;
mod key_value;
mod pingpong;
mod programs;
mod rdma;
mod support;

/// Where servers listen: at a free port.
const ANY: &str = "127.0.0.1:0";

/// All of it once more with the address and the undefined-behaviour sanitizer in the programs;
/// leaks count.
#[test]
fn nothing_is_found_by_sanitizers() {
    let options = "SANITIZE=-fsanitize=address,undefined -fno-sanitize-recover=all";
    let dir = &support::make("sanitized", &["CFLAGS=-O1 -g", options]);
    echo::echo(dir, 500_000);
    key_value::key_value(dir, "40");
    pingpong::pingpong(dir);
    rdma::remote_write(dir);
    files::files(dir);
    gateway::gateways(dir);
    if support::has("curl") {
        http::all_sites(dir);
    }
}
