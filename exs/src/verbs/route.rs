//! Routes: by which device an address is reached, and the first step of a connect.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::VerbsRnic;
use super::raw::CmId;
use crate::rnic::RnicError;

/// The same address with any port, and with its scope, which a link-local address needs.
pub(super) fn any_port(mut addr: SocketAddr) -> SocketAddr {
    addr.set_port(0);
    addr
}

/// The address that packets to `addr` leave from. The kernel is asked; no packet is sent.
fn source(addr: SocketAddr, bind: Option<SocketAddr>) -> io::Result<SocketAddr> {
    let any = match addr {
        SocketAddr::V4(_) => SocketAddr::from(([0u8; 4], 0)),
        SocketAddr::V6(_) => SocketAddr::from(([0u16; 8], 0)),
    };
    let socket = UdpSocket::bind(bind.map_or(any, any_port))?;
    socket.connect(addr)?;
    socket.local_addr()
}

impl VerbsRnic {
    pub(super) fn reaches(
        &self,
        addr: SocketAddr,
        bind: Option<SocketAddr>,
    ) -> Result<(), RnicError> {
        let unreachable = |call| Err(RnicError::Os { call, errno: libc::EHOSTUNREACH });
        if self.presence.is_lost() {
            return Err(RnicError::Os { call: "the device is gone", errno: libc::ENODEV });
        }
        if addr.ip().is_loopback() {
            return unreachable("loopback addresses are on no RDMA device");
        }
        let local = source(addr, bind).map_err(|e| RnicError::os("route", &e))?;
        match self.cm_ids.device_of(local) {
            Ok(Some(d)) if d == self.device => Ok(()),
            Ok(_) => unreachable("the route goes by another device"),
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {
                unreachable("the route goes by no RDMA device")
            }
            Err(e) => Err(RnicError::os("rdma_bind_addr", &e)),
        }
    }

    /// Makes an id and begins to resolve the address.
    ///
    /// librdmacm draws a local port from those that RDMA does not use, and siw then binds it in TCP. If
    /// it is taken there, the connect fails with EADDRINUSE. So for iWARP this picks a port that is free
    /// in TCP, and reserves it until the end of the attempt.
    pub(super) fn start_resolving(
        &mut self,
        addr: SocketAddr,
        bind: Option<SocketAddr>,
        (step, class): (Duration, Option<u8>),
    ) -> io::Result<(CmId, Option<OwnedFd>)> {
        let mut tries = 8;
        loop {
            let id = self.cm_ids.new_id()?;
            if let Some(class) = class {
                // The kernel looks the route up by it.
                id.traffic_class(class).inspect_err(|_| self.cm_ids.release(&id))?;
            }
            let (mut from, mut port) = (bind, None);
            if self.profile.is_iwarp()
                && bind.is_none_or(|b| b.port() == 0)
                && let Ok(mut local) = source(addr, bind)
            {
                let reserved = crate::sys::reserve_port(local);
                let (fd, free) = reserved.inspect_err(|_| self.cm_ids.release(&id))?;
                local.set_port(free);
                (from, port) = (Some(local), Some(fd));
            }
            match id.resolve_addr(from, addr, step) {
                Ok(()) => return Ok((id, port)),
                Err(e) => {
                    self.cm_ids.release(&id);
                    tries -= 1;
                    // Free in TCP, and taken in RDMA.
                    let again = e.raw_os_error() == Some(libc::EADDRINUSE) && port.is_some();
                    if !again || tries == 0 {
                        return Err(e);
                    }
                }
            }
        }
    }
}
