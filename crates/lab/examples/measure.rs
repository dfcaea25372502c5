//! Measures the switch: round trips with and without delay, throughput, loss and rate.
//!
//! `cargo run -p tenbin-lab --release --example measure [tap|veth]`
#![allow(clippy::print_stdout, clippy::print_stderr)]

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("labs exist on Linux only");
}

#[cfg(target_os = "linux")]
mod linux {
    use std::error::Error;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::time::{Duration, Instant};

    use tenbin_lab::{Command, Helper, Lab, Machine, PortKind, Rate, Shape, guard_main};

    type Result<T> = std::result::Result<T, Box<dyn Error>>;

    pub(crate) fn main() -> Result<()> {
        let arguments = std::env::args().skip(1).collect::<Vec<_>>();
        let words = arguments.iter().map(String::as_str).collect::<Vec<_>>();
        match words[..] {
            ["guard", ..] => std::process::exit(guard_main(&arguments[1..])),
            ["echo"] => echo(),
            ["sink"] => sink(),
            ["ping", host, count] => ping(host, count.parse()?),
            ["stream", host, seconds] => stream(host, seconds.parse()?),
            ["send", host, count] => send(host, count.parse()?),
            ["tap"] => measure(PortKind::Tap),
            ["veth"] => measure(PortKind::Veth),
            _ => measure(PortKind::Auto),
        }
    }

    fn measure(port: PortKind) -> Result<()> {
        let directory = std::env::temp_dir().join(format!("lab-{}", std::process::id()));
        let lab = Lab::builder(Helper::this_program(&["guard"])?, &directory).port(port).start()?;
        let (one, two, three) = (lab.machine("one", None)?, lab.machine("two", None)?, lab.machine("three", None)?);
        for machine in [&one, &two, &three] {
            machine.spawn(&this("echo")?)?;
            machine.spawn(&this("sink")?)?;
        }
        println!("port: {port:?}");
        println!("round trip without faults: {}", run(&one, "ping two 2000")?);
        println!("throughput without faults: {}", run(&one, "stream two 5")?);
        let delay = Shape { delay: Duration::from_millis(10), ..Shape::default() };
        let fault = lab.impair(&[(&one, &two)], &delay, None)?;
        println!("round trip, 10 ms one way: {}", run(&one, "ping two 500")?);
        println!("round trip of another pair: {}", run(&one, "ping three 2000")?);
        println!("throughput, 10 ms one way: {}", run(&one, "stream two 5")?);
        println!("throughput, 10 ms back: {}", run(&two, "stream one 5")?);
        lab.lift(fault)?;
        let losing = Shape { loss: 1e-9, ..Shape::default() };
        let fault = lab.impair(&[(&one, &two)], &losing, None)?;
        println!("throughput in packets: {}", run(&one, "stream two 5")?);
        lab.lift(fault)?;
        let rate = Rate { bits_per_second: 10_000_000, queue_bytes: 100_000 };
        let fault = lab.impair(&[(&one, &two)], &Shape { rate: Some(rate), ..Shape::default() }, None)?;
        let bytes =
            || lab.counters().map(|all| all.iter().find(|l| l.from == "one" && l.to == "two").map(|l| l.counters));
        let stream = one.spawn(&this("stream two 10")?)?;
        std::thread::sleep(Duration::from_secs(2));
        let (before, started) = (bytes()?.ok_or("no link")?.bytes, Instant::now());
        std::thread::sleep(Duration::from_secs(6));
        let passed = (bytes()?.ok_or("no link")?.bytes - before) as f64 * 8e-6 / started.elapsed().as_secs_f64();
        println!("rate 10 Mbit/s: {passed:.2} Mbit/s of frames");
        stream.wait()?;
        lab.lift(fault)?;
        let fault = lab.impair(&[(&one, &two)], &Shape { loss: 0.01, ..Shape::default() }, None)?;
        let before = bytes()?.ok_or("no link")?;
        run(&one, "send two 100000")?;
        let after = bytes()?.ok_or("no link")?;
        let (lost, packets) = (after.lost - before.lost, after.packets - before.packets);
        println!("loss 1 %: {lost} of {} packets, overflowed {}", lost + packets, after.overflowed - before.overflowed);
        lab.lift(fault)?;
        println!("overflowed in all: {}", lab.counters()?.iter().map(|link| link.counters.overflowed).sum::<u64>());
        drop(lab);
        std::fs::remove_dir_all(directory)?;
        Ok(())
    }

    fn this(line: &str) -> Result<Command> {
        Ok(Command::new(std::env::current_exe()?).args(line.split(' ')))
    }

    fn run(machine: &Machine, line: &str) -> Result<String> {
        let output = machine.exec(&this(line)?)?;
        if !output.exit.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    fn echo() -> Result<()> {
        let socket = UdpSocket::bind("0.0.0.0:7001")?;
        let mut buffer = [0; 64];
        loop {
            let (bytes, peer) = socket.recv_from(&mut buffer)?;
            socket.send_to(&buffer[..bytes], peer)?;
        }
    }

    fn ping(host: &str, count: usize) -> Result<()> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        let mut times = Vec::with_capacity(count);
        for number in 0..count as u64 {
            let sent = Instant::now();
            socket.send_to(&number.to_be_bytes(), (host, 7001))?;
            let mut answer = [0; 8];
            while u64::from_be_bytes(answer) != number || times.len() as u64 == number {
                socket.recv(&mut answer)?;
                times.push(sent.elapsed());
            }
            times.truncate(number as usize + 1);
            std::thread::sleep(Duration::from_millis(1));
        }
        times.sort_unstable();
        let ms = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
        let (p50, p95, p99, most) = (ms(0.5), ms(0.95), ms(0.99), ms(1.0));
        println!("p50 {p50:.3} ms, p95 {p95:.3}, p99 {p99:.3}, max {most:.3}");
        Ok(())
    }

    fn sink() -> Result<()> {
        for stream in TcpListener::bind("0.0.0.0:7002")?.incoming() {
            let (mut stream, mut buffer, mut total) = (stream?, vec![0; 1 << 18], 0_u64);
            let started = Instant::now();
            loop {
                match stream.read(&mut buffer)? {
                    0 => break,
                    bytes => total += bytes as u64,
                }
            }
            let speed = total as f64 * 8e-9 / started.elapsed().as_secs_f64();
            stream.write_all(&speed.to_be_bytes())?;
        }
        Ok(())
    }

    fn stream(host: &str, seconds: u64) -> Result<()> {
        let mut stream = TcpStream::connect((host, 7002))?;
        let (block, end) = (vec![1; 1 << 17], Instant::now() + Duration::from_secs(seconds));
        while Instant::now() < end {
            stream.write_all(&block)?;
        }
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut speed = [0; 8];
        stream.read_exact(&mut speed)?;
        println!("{:.3} Gbit/s", f64::from_be_bytes(speed));
        Ok(())
    }

    /// Sends datagrams without waiting for answers, with pauses so that no queue overflows.
    fn send(host: &str, count: u64) -> Result<()> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        for number in 0..count {
            // A refusal by the other machine is reported here; it does not matter.
            let _ = socket.send_to(&number.to_be_bytes(), (host, 7003));
            if number % 64 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }
}
