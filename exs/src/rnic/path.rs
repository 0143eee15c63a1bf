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
    /// The partition: a P_Key of InfiniBand. Only the side that connects sets this and what follows,
    /// for both sides.
    pub pkey: Option<u16>,
    /// The service level: 0 to 15.
    pub service_level: Option<u8>,
    /// The most bytes of a packet's payload: 256, 512, 1024, 2048 or 4096.
    pub mtu: Option<u16>,
}

#[cfg(any(test, feature = "verbs"))]
impl PathAttr {
    /// The option among `pkey`, `service_level` and `path_mtu` that is set. They are properties of
    /// the route, and only InfiniBand and RoCE have them. None: the network chooses the route.
    pub fn route_option(&self) -> Option<&'static str> {
        let named = [
            (self.pkey.is_some(), "pkey"),
            (self.service_level.is_some(), "service_level"),
            (self.mtu.is_some(), "path_mtu"),
        ];
        named.into_iter().find_map(|(set, name)| set.then_some(name))
    }
}
