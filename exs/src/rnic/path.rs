//! What a program may set of the path of its connections through the network.

/// Parameters of a path. None in a field: the value of the RNIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathAttr {
    /// Traffic class of IPv6, and type of service of IPv4: the DSCP (RFC 2474) times 4. The RNIC in
    /// software and RDMA devices use it. Shared memory has no network.
    pub traffic_class: Option<u8>,
    /// How many times a device sends again what was not acknowledged: 0 to 7. Only InfiniBand and
    /// RoCE have this and what follows: the TCP below iWARP has rules of its own.
    pub retry_count: Option<u8>,
    /// How many times a device sends again what found no receive: 0 to 6; 7 is for ever.
    pub rnr_retry_count: Option<u8>,
    /// How long the peer waits before it does so: a code of InfiniBand, 0 to 31.
    pub rnr_timer: Option<u8>,
    /// How long a device waits for an acknowledgement: 4.096 us times 2 to the power of this, which
    /// is 1 to 31.
    pub ack_timeout: Option<u8>,
}
