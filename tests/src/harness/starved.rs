//! A process that has no descriptors left.

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// This process has few descriptors left, or none, until this is dropped.
pub struct Starved {
    limits: (u64, u64),
    plugs: Vec<File>,
}

impl Starved {
    /// The process has `spare` descriptors left.
    pub fn new(spare: usize) -> Starved {
        let limits = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let open = || File::open("/dev/null");
        // The kernel gives out the lowest number that is free: none is free below the limit.
        let mut plugs: Vec<File> = (0..64).map(|_| open().unwrap()).collect();
        let last = plugs.iter().map(AsRawFd::as_raw_fd).max().unwrap();
        let most = u64::try_from(last).unwrap() + 1;
        setrlimit(Resource::RLIMIT_NOFILE, most, limits.1).unwrap();
        while let Ok(plug) = open() {
            plugs.push(plug);
        }
        plugs.truncate(plugs.len() - spare);
        Starved { limits, plugs }
    }
}

impl Drop for Starved {
    fn drop(&mut self) {
        setrlimit(Resource::RLIMIT_NOFILE, self.limits.0, self.limits.1).unwrap();
        self.plugs.clear();
    }
}
