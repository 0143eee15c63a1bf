//! exs-cp
mod auth;
mod disk;
mod error;
mod hash;
mod net;
#[cfg(test)]
mod testing;
mod wire;
fn main() {}
