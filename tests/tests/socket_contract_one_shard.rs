//! The contract of sockets in a process with one shard, in which all threads share one engine.

use std::net::{IpAddr, Ipv4Addr};

use exs::{Options, Transport};
use exs_tests::harness::Env;
use exs_tests::socket_contract;

fn env(transport: Transport) -> Env {
    exs::progress::limit_shards(1).unwrap();
    Env::new(Options::default().with_transport(transport), IpAddr::V4(Ipv4Addr::LOCALHOST))
}

mod shm {
    fn env() -> super::Env {
        super::env(super::Transport::Shm)
    }
    super::socket_contract!(super::env);
}

mod soft {
    fn env() -> super::Env {
        super::env(super::Transport::Soft)
    }
    super::socket_contract!(super::env);
}
