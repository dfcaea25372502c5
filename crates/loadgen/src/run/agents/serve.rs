use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use tenbin_codec::Secret;
use tokio::net::{TcpListener, TcpStream};

use super::session;
use super::stream::standard;
use crate::LoadgenError;
use crate::interrupt::unless_interrupted;
use crate::run::Drivers;
use crate::run::clock::RunClock;
use crate::values::positive_duration;

/// Arguments of `agent`.
#[derive(Debug, Clone, Args)]
pub struct AgentArgs {
    /// Address to listen on for a controller. Any host that can connect to it can send load anywhere from this machine
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:4500")]
    pub(crate) listen: String,

    /// Serve the one controller at standard input and output, instead of listening; end with its run
    #[arg(long, conflicts_with_all = ["listen", "token"])]
    pub(crate) stdio: bool,

    /// Serve only controllers that know this secret (`loadgen run --token`). It is sent unencrypted
    #[arg(long, value_name = "SECRET")]
    pub(crate) token: Option<Secret<String>>,

    /// For tests: the clock is ahead by this time, or behind: -300ms
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, hide = true)]
    #[arg(value_parser = signed_ns)]
    pub(crate) clock_shift: Option<i64>,
}

/// Serves controllers one after the other, until interrupted.
///
/// # Errors
/// The address cannot be bound, or the results cannot be printed.
pub(crate) async fn serve(args: AgentArgs, drivers: &Drivers, out: &mut dyn Write) -> Result<(), LoadgenError> {
    match unless_interrupted(listen(&args, drivers, out)).await {
        // An interrupt is the regular end of an agent.
        Err(LoadgenError::Interrupted) => Ok(()),
        ended => ended,
    }
}

async fn listen(args: &AgentArgs, drivers: &Drivers, out: &mut dyn Write) -> Result<(), LoadgenError> {
    if args.stdio {
        let clock = RunClock::new(args.clock_shift.unwrap_or(0));
        let fail = |reason| LoadgenError::agent("--stdio", reason);
        let wire = standard().map_err(|error| fail(format!("standard input or output: {error}")))?;
        return session::serve_only(wire, drivers, clock).await.map_err(fail);
    }
    let fail = |error: io::Error| LoadgenError::agent(&args.listen, format!("cannot listen: {error}"));
    let listener = TcpListener::bind(&args.listen).await.map_err(fail)?;
    let address = listener.local_addr().map_err(fail)?;
    say(out, &format!("agent listening on {address}"))?;
    if args.token.is_none() && !is_local(address.ip()) {
        say(out, "anybody who reaches this address can send load from here: consider --token")?;
    }
    loop {
        let (stream, peer) = accept(&listener).await;
        let served = serve_alone(&listener, stream, args, drivers).await;
        say(out, &report(peer, served))?;
    }
}

/// Serves one controller; refuses others during its run.
async fn serve_alone(
    listener: &TcpListener,
    stream: TcpStream,
    args: &AgentArgs,
    drivers: &Drivers,
) -> Result<(), String> {
    let busy = match stream.peer_addr() {
        Ok(peer) => format!("busy with a run of {peer}"),
        Err(_) => "busy with another run".to_owned(),
    };
    let clock = RunClock::new(args.clock_shift.unwrap_or(0));
    let mut session = pin!(session::serve(stream, args.token.as_ref(), drivers, clock));
    loop {
        tokio::select! {
            // Check for the end first: a controller that connects right after a run is not refused.
            biased;
            served = &mut session => return served,
            (stream, _) = accept(listener) => {
                let busy = busy.clone();
                // Refusing takes up to a second; the run must not wait for it.
                tokio::spawn(async move { session::refuse(stream, &busy).await });
            }
        }
    }
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            // Out of file descriptors: the present run goes on, and frees them when it ends.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

fn report(peer: SocketAddr, served: Result<(), String>) -> String {
    match served {
        Ok(()) => format!("{peer}: done"),
        Err(reason) => format!("{peer}: {reason}"),
    }
}

fn say(out: &mut dyn Write, line: &str) -> Result<(), LoadgenError> {
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(LoadgenError::Print)
}

/// Parses `300ms` or `-300ms` into nanoseconds.
fn signed_ns(text: &str) -> Result<i64, String> {
    let (sign, time) = match text.strip_prefix('-') {
        Some(time) => (-1, time),
        None => (1, text),
    };
    Ok(sign * positive_duration(time)?.as_nanos() as i64)
}

fn is_local(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_shift_may_be_negative() {
        assert_eq!(signed_ns("300ms"), Ok(300_000_000));
        assert_eq!(signed_ns("-1.5s"), Ok(-1_500_000_000));
        for text in ["", "-", "--1s", "300h"] {
            assert!(signed_ns(text).is_err(), "{text}");
        }
    }

    #[test]
    fn non_loopback_addresses_are_recognized() {
        for (address, local) in [("127.0.0.1", true), ("::1", true), ("::ffff:127.0.0.1", true), ("0.0.0.0", false)] {
            assert_eq!(is_local(address.parse().unwrap()), local, "{address}");
        }
    }
}
