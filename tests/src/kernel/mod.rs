//! The contract of kernel sockets: what holds of EXS's calls on what socket(2) made, and
//! of what their owner does with it meanwhile.
//!
//! Each function tests one promise, on all families that it is made for. The contract is
//! run twice, with io_uring for what would block and without
//! ([`kernel_contract!`](crate::kernel_contract)). The peers here are plain programs: they
//! read(2) and write(2).

pub mod burst;
pub mod chaos;
pub mod messages;
pub mod owner;
pub mod queue;
pub mod stream;
pub mod wait;

use std::fs::File;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::{Arc, OnceLock};

use exs::KernelSocket;
use exs::plain::KernelIo;
use exs::progress::{Context, Devices};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::stat::fstat;

use crate::harness::Watchdog;
use crate::skip::skip;

/// A kind of connected sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// A UNIX-domain stream.
    Unix,
    /// UNIX-domain messages on a connection.
    SeqPacket,
    /// UNIX-domain datagrams.
    UnixDgram,
    /// UDP over IPv4.
    Udp4,
    /// UDP over IPv6.
    Udp6,
}

use Family::{SeqPacket, Tcp4, Tcp6, Udp4, Udp6, Unix, UnixDgram};

/// Those that carry bytes.
pub const STREAMS: [Family; 3] = [Tcp4, Tcp6, Unix];
/// Those that carry messages.
pub const MESSAGES: [Family; 4] = [SeqPacket, UnixDgram, Udp4, Udp6];
/// All of them.
pub const ALL: [Family; 7] = [Tcp4, Tcp6, Unix, SeqPacket, UnixDgram, Udp4, Udp6];

impl Family {
    /// Two connected sockets, which block.
    pub fn pair(self) -> (OwnedFd, OwnedFd) {
        let tcp = |at: &str| {
            let listener = TcpListener::bind(at).unwrap();
            let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (a.into(), listener.accept().unwrap().0.into())
        };
        let udp = |at: &str| {
            let (a, b) = (UdpSocket::bind(at).unwrap(), UdpSocket::bind(at).unwrap());
            a.connect(b.local_addr().unwrap()).unwrap();
            b.connect(a.local_addr().unwrap()).unwrap();
            (a.into(), b.into())
        };
        match self {
            Tcp4 => tcp("127.0.0.1:0"),
            Tcp6 => tcp("[::1]:0"),
            Udp4 => udp("127.0.0.1:0"),
            Udp6 => udp("[::1]:0"),
            Unix => UnixStream::pair().map(|(a, b)| (a.into(), b.into())).unwrap(),
            UnixDgram => UnixDatagram::pair().map(|(a, b)| (a.into(), b.into())).unwrap(),
            SeqPacket => {
                let flags = SockFlag::SOCK_CLOEXEC;
                socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap()
            }
        }
    }
}

/// Our end, and the peer's, a plain program's.
pub fn pair(family: Family) -> (Ours, File) {
    let (a, b) = family.pair();
    (Ours::new(a), File::from(b))
}

/// A kernel socket whose owner sees to it that nothing is changed.
#[derive(Debug)]
pub struct Ours {
    /// For looks that the library knows nothing of. It is dropped first: the other one closes.
    fd: Arc<OwnedFd>,
    socket: Option<KernelSocket<Arc<OwnedFd>>>,
    flags: (i32, i32),
    inode: u64,
}

fn flags(fd: impl AsFd) -> (i32, i32) {
    (fcntl(&fd, FcntlArg::F_GETFL).unwrap(), fcntl(&fd, FcntlArg::F_GETFD).unwrap())
}

impl Ours {
    /// Of a descriptor.
    pub fn new(fd: OwnedFd) -> Ours {
        let (flags, inode) = (flags(&fd), fstat(&fd).unwrap().st_ino);
        let fd = Arc::new(fd);
        Ours { socket: Some(KernelSocket::new(Arc::clone(&fd)).unwrap()), fd, flags, inode }
    }

    /// Panics unless the owner's flags are what they were.
    pub fn check(&self) {
        assert_eq!(flags(&*self.fd), self.flags, "flags changed behind the owner's back");
    }

    /// Descriptors of this process for this socket.
    pub fn descriptors(&self) -> usize {
        descriptors(self.inode)
    }

    /// The inode.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// The owner has it back.
    pub fn into_fd(mut self) -> OwnedFd {
        self.check();
        let socket = self.socket.take().expect("it is there until now");
        let fd = socket.into_inner();
        drop(self);
        Arc::try_unwrap(fd).expect("the other one went with us")
    }

    /// For the owner's own reads and writes.
    pub fn file(&self) -> File {
        File::from(self.get_ref().try_clone().unwrap())
    }
}

impl std::ops::Deref for Ours {
    type Target = KernelSocket<Arc<OwnedFd>>;
    fn deref(&self) -> &KernelSocket<Arc<OwnedFd>> {
        self.check();
        self.socket.as_ref().expect("it is there until it is taken")
    }
}

impl std::ops::DerefMut for Ours {
    fn deref_mut(&mut self) -> &mut KernelSocket<Arc<OwnedFd>> {
        self.socket.as_mut().expect("it is there until it is taken")
    }
}

/// Every test ends with a look at the flags.
impl Drop for Ours {
    fn drop(&mut self) {
        if !std::thread::panicking() && self.socket.is_some() {
            self.check();
        }
    }
}

/// Descriptors of this process for the socket with this inode.
pub fn descriptors(inode: u64) -> usize {
    let name = format!("socket:[{inode}]");
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    // A descriptor of another thread may go while we read.
    links
        .filter_map(|l| std::fs::read_link(l.ok()?.path()).ok())
        .filter(|l| l.as_os_str() == name.as_str())
        .count()
}

/// Lets an end block, or not.
pub fn set_nonblocking(fd: impl AsFd, on: bool) {
    let mut flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL).unwrap());
    flags.set(OFlag::O_NONBLOCK, on);
    fcntl(&fd, FcntlArg::F_SETFL(flags)).unwrap();
}

/// Sends from the socket until the kernel takes no more, in the owner's name; returns the
/// bytes. The flag that this needs is taken back.
pub fn fill(fd: impl AsFd) -> usize {
    use nix::sys::socket::{MsgFlags, send};
    let (block, mut total) = (vec![0x55u8; 32 << 10], 0);
    while let Ok(n) = send(fd.as_fd().as_raw_fd(), &block, MsgFlags::MSG_DONTWAIT) {
        total += n;
    }
    total
}

/// Runs one test, if there is what it needs; all tests of a process with one way of waiting.
pub fn run(name: &'static str, io: KernelIo, test: fn()) {
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    let ready = READY.get_or_init(|| {
        if io == KernelIo::Uring {
            let bell = exs::sys::EventFd::new().unwrap();
            exs::sys::IoRing::new(bell.into()).map_err(|e| format!("no io_uring here: {e}"))?;
        }
        let devices = Devices::of_host().with_kernel_io(io);
        Context::install(Context::new(devices).unwrap()).unwrap();
        Ok(())
    });
    match ready {
        Err(why) => skip(why),
        Ok(()) => {
            let _dog = Watchdog::new(name);
            test();
        }
    }
}

/// Tests of the whole contract with one way of waiting.
#[macro_export]
macro_rules! kernel_contract {
    ($io:expr) => {
        $crate::kernel_tests! { $io;
            burst: arrives_while_no_thread_dequeues, leaves_before_calls_of_the_owner,
                leaves_before_a_close, is_whole,
                leaves_others_their_turn;
            chaos: every_operation_has_one_event;
            messages: boundaries_are_kept, truncation_tells_the_true_length, empty_messages,
                the_end_of_a_seqpacket, peek, many_buffers, addresses, unix_addresses,
                a_full_queue_elsewhere, a_message_too_long, an_icmp_error;
            owner: uses_it_between_and_after, receives_while_we_send, every_call_leaves_the_flags,
                as_netperf_does, closes_by_drop, closes_behind_our_back,
                gives_the_number_to_another_file, shuts_down, leaves_with_sends_in_flight,
                holds_no_descriptor_for_long, is_nonblocking, lingers, closes_one_of_two;
            queue: cancel_by_token, cancel_all, cancel_is_of_one_descriptor, thresholds,
                depth_is_a_limit, time_limits, mixed, a_thousand_sockets, several_threads,
                progress_without_a_waiter, polls, polls_of_pipes, what_is_refused,
                events_carry_the_number_of_their_socket;
            stream: order_and_integrity, waitall, peek, zero_lengths, vectored, one_large_send,
                small_sends_are_not_held_back, files, files_to_a_slow_reader, files_that_fail,
                the_end, a_reset_in_the_middle, not_connected, shutdown_waits_its_turn,
                registered_memory;
            wait: accepts_in_order, accepts_and_the_owner, a_nonblocking_listener,
                cancelled_accepts, not_a_listener, connects, refused_connects, sends_behind_a_connect,
                a_connect_that_waits, connects_of_datagrams, a_nonblocking_connect,
                many_connects, two_connects, closed_with_an_accept;
        }
    };
}

/// What [`kernel_contract!`](crate::kernel_contract) is made of.
#[doc(hidden)]
#[macro_export]
macro_rules! kernel_tests {
    ($io:expr; $($group:ident: $($test:ident),+;)+) => {$(
        mod $group {$(
            #[test]
            fn $test() {
                let name = concat!(module_path!(), "::", stringify!($test));
                $crate::kernel::run(name, $io, $crate::kernel::$group::$test);
            }
        )+}
    )+};
}
