//! An agent and its controllers, over sockets. Runs are tested with the built command.

use std::io::{self, Read as _, Write};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use tenbin_codec::Secret;
use tokio::net::TcpStream;

use super::link::AgentLink;
use super::message::{AgentMessage, Hello};
use super::session::serve_only;
use super::wire::Wire;
use super::{AgentArgs, AgentStream, serve};
use crate::run::clock::RunClock;
use crate::run::offset::Offset;
use crate::run::record::example;
use crate::run::{Drivers, RunArgs, Slice};
use crate::values::parsed;

/// Starts an agent that serves until the test process ends; returns its address.
fn agent(token: Option<&str>, clock_shift: i64) -> String {
    let (lines, listening) = sync_channel(16);
    let args = AgentArgs {
        listen: "127.0.0.1:0".into(),
        stdio: false,
        token: token.map(secret),
        clock_shift: Some(clock_shift),
    };
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(serve(args, &Drivers::mqtt(), &mut Said(lines))).unwrap();
    });
    let line = listening.recv_timeout(Duration::from_secs(60)).unwrap();
    // Discard later output, which the agent must not wait for.
    std::thread::spawn(move || for _ in listening {});
    line.trim().strip_prefix("agent listening on ").unwrap().to_owned()
}

struct Said(SyncSender<String>);

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(String::from_utf8_lossy(bytes).into_owned()).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn secret(token: &str) -> Secret<String> {
    Secret::new(token.to_owned())
}

async fn refusal(address: &str, token: Option<&str>) -> String {
    let error = AgentLink::open(address, token.map(secret).as_ref()).await.unwrap_err().to_string();
    error.strip_prefix(&format!("agent {address}: ")).unwrap().to_owned()
}

#[tokio::test]
async fn an_agent_serves_only_those_who_know_its_token() {
    let address = agent(Some("secret"), 0);
    assert_eq!(refusal(&address, None).await, "it wants a token (--token)");
    for wrong in ["", "Secret", "secret2", "secre"] {
        assert_eq!(refusal(&address, Some(wrong)).await, "wrong token");
    }
    AgentLink::open(&address, Some(&secret("secret"))).await.unwrap().close().await;
}

#[tokio::test]
async fn both_sides_must_be_of_the_same_version() {
    let address = agent(None, 0);
    for (protocol, program) in [(0, env!("CARGO_PKG_VERSION")), (3, "0.0.0")] {
        let mut wire = Wire::new(TcpStream::connect(&address).await.unwrap()).unwrap();
        let hello = Hello { protocol, program: program.to_owned(), token: None };
        wire.send(&AgentMessage::Hello(hello)).await.unwrap();
        let AgentMessage::Error(text) = wire.receive().await.unwrap() else { panic!("an error") };
        assert!(text.starts_with(&format!("tenbin {program} (protocol {protocol}) there, tenbin ")), "{text}");
    }
}

#[tokio::test]
async fn agent_serves_one_controller_at_a_time() {
    let address = agent(None, 0);
    for _ in 0..3 {
        let link = AgentLink::open(&address, None).await.unwrap();
        let busy = refusal(&address, None).await;
        assert!(busy.starts_with("busy with a run of 127.0.0.1:"), "{busy}");
        link.close().await;
    }
}

#[tokio::test]
async fn foreign_bytes_get_an_error_and_agent_keeps_serving() {
    let address = agent(None, 0);
    for bytes in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], b"\0\0\0\x02{}", b"\xFF\xFF\xFF\xFF", b"\0\0\x0F\xFFx"] {
        let address = address.clone();
        // Written outside the runtime: half a frame, followed by the end of the stream.
        let answer = tokio::task::spawn_blocking(move || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.write_all(bytes).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            answer
        });
        let answer = String::from_utf8_lossy(&answer.await.unwrap()).into_owned();
        assert!(answer.contains("Error"), "{bytes:?}: {answer}");
    }
    AgentLink::open(&address, None).await.unwrap().close().await;
}

#[tokio::test]
async fn unexpected_message_is_named_in_the_error() {
    let address = agent(None, 0);
    let mut link = AgentLink::open(&address, None).await.unwrap();
    link.send(&AgentMessage::Finish).await.unwrap();
    let error = link.ready().await.unwrap_err().to_string();
    assert_eq!(error, format!("agent {address}: unexpected Finish"));
}

#[tokio::test]
async fn ready_agent_gives_up_when_controller_is_silent() {
    let address = agent(None, 0);
    let mut link = AgentLink::open(&address, None).await.unwrap();
    link.send(&AgentMessage::Watching).await.unwrap();
    let mut plan = example::plan(vec![]);
    plan.publishers.count = 0;
    let prepare = AgentMessage::Prepare { plan: Box::new(plan), password: None, slice: Slice::ALL, move_clock_ns: 0 };
    link.send(&prepare).await.unwrap();
    link.ready().await.unwrap();
    // Other agents take long.
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        link.send(&AgentMessage::Watching).await.unwrap();
    }
    // Then the controller falls silent, but its connection stays open.
    let mut told = Ok(());
    for _ in 0..2 {
        told = link.ready().await;
        if told.as_ref().is_err_and(|error| !error.to_string().contains("it says nothing")) {
            break;
        }
    }
    assert_eq!(told.unwrap_err().to_string(), format!("agent {address}: its controller says nothing for 10 s"));
}

#[tokio::test]
async fn agent_clock_offset_is_within_uncertainty() {
    let clock = RunClock::new(0);
    for shift in [0, 300_000_000, -300_000_000] {
        let address = agent(None, shift);
        let mut link = AgentLink::open(&address, None).await.unwrap();
        let mut probes = Vec::new();
        for _ in 0..20 {
            probes.push(link.probe(clock).await.unwrap());
        }
        let offset = Offset::of(&probes).unwrap();
        // Both clocks derive from two readings of the system clock, in two threads that a busy machine may suspend.
        let difference = offset.ns.abs_diff(shift);
        assert!(difference < offset.uncertainty_ns + 50_000_000, "{difference} ns, {offset:?}");
    }
}

#[tokio::test]
async fn agent_serves_its_only_controller_over_any_byte_stream() {
    let serve = || {
        let (ours, theirs) = tokio::io::duplex(4096);
        let (reader, writer) = tokio::io::split(theirs);
        let wire = Wire::over(Box::new(reader), Box::new(writer));
        let served = tokio::spawn(async move { serve_only(wire, &Drivers::mqtt(), RunClock::new(300_000_000)).await });
        let (reader, writer) = tokio::io::split(ours);
        (AgentStream::new("lab-1", reader, writer), served)
    };
    let (stream, served) = serve();
    let mut link = AgentLink::over(stream).await.unwrap();
    let clock = RunClock::new(0);
    let probe = link.probe(clock).await.unwrap();
    assert!(Offset::of(&[probe]).unwrap().ns > 200_000_000);
    link.listen().unwrap();
    link.close().await;
    served.await.unwrap().unwrap();

    let (stream, served) = serve();
    let mut link = AgentLink::over(stream).await.unwrap();
    link.send(&AgentMessage::Finish).await.unwrap();
    assert_eq!(link.ready().await.unwrap_err().to_string(), "agent lab-1: unexpected Finish");
    assert_eq!(served.await.unwrap().unwrap_err(), "unexpected Finish");
}

#[test]
fn secrets_are_in_messages_and_in_no_text_about_them() {
    let mut plan = example::plan(Vec::new());
    plan.connection.password = Some(secret("hidden"));
    let args: RunArgs = parsed("run --agents a --token hidden --password hidden").unwrap();
    let password = plan.connection.password.clone();
    let hello = AgentMessage::Hello(Hello::new(password.as_ref()));
    let prepare = AgentMessage::Prepare { plan: Box::new(plan), password, slice: Slice::ALL, move_clock_ns: 0 };
    let shown = format!("{args:?} {hello:?} {prepare:?}");
    assert!(shown.matches("***").count() >= 4 && !shown.contains("hidden"), "{shown}");
    for message in [hello, prepare] {
        assert_eq!(serde_json::to_string(&message).unwrap().matches("hidden").count(), 1, "{message:?}");
    }
}
