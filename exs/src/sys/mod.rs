//! F1: the few system calls that the standard library has no safe form of (an
//! `unsafe` island).
//!
//! Each function is safe to call: it checks what it must, and returns
//! `io::Error` with the kernel's errno. What it must never know: protocols.
#![allow(unsafe_code)]

mod eventfd;
mod map;

pub use eventfd::EventFd;
pub use map::map_anonymous;
pub(crate) use map::unmap;
