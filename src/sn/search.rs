use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::time::Duration;

use clap::Args;
use tenbin_kit::cli;
use tenbin_sn_client::{Search, search};
use tokio::net::lookup_host;

use super::{SnError, positive_time};

#[derive(Debug, Args)]
pub(crate) struct SearchArgs {
    /// Multicast group of the gateways.
    #[arg(long, value_name = "GROUP:PORT", default_value = "239.255.0.1:1884")]
    multicast: SocketAddr,
    /// Asks this gateway instead of the multicast group.
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "multicast")]
    gateway: Option<String>,
    /// Address of the interface for multicast [default: the system's choice]
    #[arg(long, value_name = "ADDRESS")]
    interface: Option<Ipv4Addr>,
    /// Hops that the search may travel; 0 = no limit.
    #[arg(long, value_name = "HOPS", default_value = "1")]
    radius: u8,
    /// Time to wait for answers.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = positive_time)]
    wait: Duration,
    /// Ends after this number of gateways [default: never]
    #[arg(short = 'C', long, value_name = "COUNT")]
    count: Option<NonZeroUsize>,
}

pub(super) async fn run(arguments: &SearchArgs) -> Result<(), SnError> {
    let target = match &arguments.gateway {
        Some(gateway) => resolve(gateway).await.map_err(|error| SnError::Named(gateway.clone(), error))?,
        None => arguments.multicast,
    };
    let enough = arguments.count.map_or(if arguments.gateway.is_some() { 1 } else { usize::MAX }, NonZeroUsize::get);
    let (interface, radius, wait) = (arguments.interface, arguments.radius, arguments.wait);
    let found = search(&Search { target, interface, radius, wait, enough }).await?;
    if found.is_empty() {
        return Err(SnError::NotFound(target, wait));
    }
    let mut out = cli::out();
    for gateway in found {
        writeln!(out, "{} id {}", gateway.address, gateway.id)?;
    }
    Ok(())
}

async fn resolve(gateway: &str) -> io::Result<SocketAddr> {
    // `localhost` is an address of each version of IP, and few gateways listen at `::1`.
    let nothing = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    lookup_host(gateway).await?.min_by_key(SocketAddr::is_ipv6).ok_or_else(nothing)
}
