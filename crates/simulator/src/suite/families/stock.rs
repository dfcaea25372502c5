//! Families of workers as they come: with stock clients, which tell the broker nothing and send no reports.

use tenbin_kit::Span;

use super::{Draw, count};
use crate::{
    arrivals::Arrivals,
    distribution::Distribution,
    family::Family,
    scenario::{Acknowledges, Reports, Scenario, WorkerKind},
};

/// The scenario of one of these families.
pub(super) fn scenario(family: Family, seed: u64, draw: &mut Draw) -> Scenario {
    let workers = match family {
        Family::Proxied => proxied(draw),
        Family::Jitter => jitter(draw),
        Family::Habits => habits(draw),
        Family::EarlyAcks => early_acks(draw),
        Family::UnknownThreads => unknown_threads(draw),
        _ => stock(draw),
    };
    let (least, most) = match family {
        Family::Stock => (0.5, 0.85),
        Family::Proxied => (0.25, 0.85),
        _ => (0.4, 0.9),
    };
    let load = draw.uniform(least, most);
    let interval_ms = 1.0 / (load * workers.iter().map(super::per_ms).sum::<f64>());
    let interval = Span::from_ms(interval_ms);
    let arrivals = if draw.chance(0.3) { Arrivals::Fixed(interval) } else { Arrivals::Poisson(interval) };
    let about = format!("{}, {arrivals}, load {:.0} %", summary(&workers), load * 100.0);
    let name = format!("{} {seed}", family.name());
    let idle = Span::from_ms(draw.uniform(0.0, 3000.0));
    let messages = count((LENGTH_MS / interval_ms) as u32);
    Scenario { about, idle, ..Scenario::of(name, messages, arrivals, workers) }
}

/// Workers of paho for Python that work in `on_message`. One is slower.
fn stock(draw: &mut Draw) -> Vec<WorkerKind> {
    let kind = WorkerKind { distribution: tail(draw), ..untold(draw.log_uniform(10.0, 60.0)) };
    let mut workers = vec![paho(kind); draw.whole(4, 8) as usize];
    let slower = &mut workers[0].service;
    *slower = Span::from_ms(slower.ms() * draw.uniform(2.0, 4.0));
    workers
}

/// Short work behind a proxy.
fn proxied(draw: &mut Draw) -> Vec<WorkerKind> {
    let distribution = if draw.chance(0.5) { Distribution::Exponential } else { Distribution::Jitter(0.5) };
    let hidden = Span::from_ms(draw.uniform(5.0, 20.0));
    let kind = WorkerKind { distribution, hidden, ..untold(draw.log_uniform(2.0, 10.0)) };
    let kind = if draw.chance(0.5) { paho(kind) } else { kind };
    vec![kind; draw.whole(3, 8) as usize]
}

/// Workers that are about as far as their work is long. The way differs from packet to packet, and is hidden in half of
/// the scenarios.
fn jitter(draw: &mut Draw) -> Vec<WorkerKind> {
    let (mean_ms, distribution) = (draw.log_uniform(10.0, 60.0), tail(draw));
    let (is_hidden, jitter) = (draw.chance(0.5), draw.uniform(0.0, 0.3));
    let number = draw.whole(3, 12);
    let worker = |draw: &mut Draw| {
        let service_ms = mean_ms * draw.uniform(0.7, 1.4);
        let kind = WorkerKind { distribution, jitter, ..untold(service_ms) };
        let path = Span::from_ms(service_ms * draw.log_uniform(0.5, 2.0));
        if is_hidden { WorkerKind { hidden: path, ..kind } } else { WorkerKind { delay: path, ..kind } }
    };
    (0..number).map(|_| worker(draw)).collect()
}

/// Workers that acknowledge in different ways, all of them after their work.
fn habits(draw: &mut Draw) -> Vec<WorkerKind> {
    let (mean_ms, distribution) = (draw.log_uniform(10.0, 60.0), tail(draw));
    let number = draw.whole(4, 10);
    let worker = |draw: &mut Draw| {
        let kind = WorkerKind { distribution, ..untold(mean_ms * draw.log_uniform(0.5, 2.0)) };
        match draw.whole(0, 7) {
            0 | 1 => kind,
            2 => WorkerKind { nagle: true, ..kind },
            3 | 4 => paho(kind),
            5 | 6 => {
                let messages = count(draw.whole(2, 10));
                let within = Some(Span::from_ms(draw.log_uniform(20.0, 200.0)));
                WorkerKind { acknowledges: Acknowledges::Batched { messages, within }, ..kind }
            }
            _ => {
                let threads = count(draw.whole(2, 4));
                WorkerKind { threads, acknowledges: Acknowledges::CompletionOrder, ..kind }
            }
        }
    };
    (0..number).map(|_| worker(draw)).collect()
}

/// One or two workers that acknowledge before their work, among others.
fn early_acks(draw: &mut Draw) -> Vec<WorkerKind> {
    let mut workers = habits(draw);
    let early = draw.whole(1, 2) as usize;
    workers.iter_mut().take(early).for_each(|kind| kind.acknowledges = Acknowledges::OnArrival);
    workers
}

/// Workers with numbers of threads that the broker does not know.
fn unknown_threads(draw: &mut Draw) -> Vec<WorkerKind> {
    let (mean_ms, distribution) = (draw.log_uniform(10.0, 60.0), tail(draw));
    let acknowledges = if draw.chance(0.5) { Acknowledges::AfterProcessing } else { Acknowledges::CompletionOrder };
    let number = draw.whole(3, 10);
    let worker = |draw: &mut Draw| {
        let threads = count(draw.log_uniform(1.0, 16.5) as u32);
        WorkerKind { threads, distribution, acknowledges, ..untold(mean_ms * draw.uniform(0.7, 1.4)) }
    };
    (0..number).map(|_| worker(draw)).collect()
}

/// A worker that tells the broker nothing.
fn untold(service_ms: f64) -> WorkerKind {
    WorkerKind { reports: Reports::Never, ..WorkerKind::of(Span::from_ms(service_ms)) }
}

/// The worker with the loop and the socket of paho for Python.
fn paho(kind: WorkerKind) -> WorkerKind {
    WorkerKind { acknowledges: Acknowledges::AfterNextRead, nagle: true, ..kind }
}

fn tail(draw: &mut Draw) -> Distribution {
    if draw.chance(0.5) {
        return Distribution::Exponential;
    }
    // In whole hundredths, which are short in the table.
    Distribution::Lognormal(draw.uniform(70.0, 200.0).round() / 100.0)
}

/// Number, mean work and mean path of the workers.
fn summary(workers: &[WorkerKind]) -> String {
    let mean = |of: fn(&WorkerKind) -> f64| workers.iter().map(of).sum::<f64>() / workers.len().max(1) as f64;
    let (service_ms, path_ms) = (mean(|kind| kind.service.ms()), mean(|kind| kind.delay.ms() + kind.hidden.ms()));
    let threads: u32 = workers.iter().map(|kind| kind.threads.get()).sum();
    let WorkerKind { distribution, hidden, jitter, .. } = workers[0];
    let hidden = if hidden == Span::ZERO { "" } else { ", hidden" };
    let jitter = if jitter == 0.0 { String::new() } else { format!(" ± {:.0} %", 100.0 * jitter) };
    let (number, path) = (workers.len(), format!("{path_ms:.1} ms{jitter} away{hidden}"));
    format!("{number} workers, {threads} threads, {service_ms:.0} ms {distribution}, {path}")
}

/// Duration of the load.
const LENGTH_MS: f64 = 20_000.0;
