//! One run of one variant, from the start of its systems to its verdict.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tenbin_loadgen::LoadgenError;
use tenbin_loadgen::run::{AgentStream, Finished, Plan as LoadPlan, RunningLoad};

use super::Setup;
use super::faults::Faults;
use super::load;
use super::measured::Measured;
use super::sampler::Sampler;
use super::stage::Stage;
use super::steady::Steady;
use super::watch::{Watch, Watched};
use crate::judge::figure::Figure;
use crate::judge::leaders;
use crate::judge::measured::{Figures, Measurements as _};
use crate::judge::windows::{Phase, windows};
use crate::line::Line;
use crate::plan::Plan;
use crate::results::{self, Event, RunVerdict};
use crate::runtime::{FILES, LOGS, Processes, Site, World};
#[cfg(target_os = "linux")]
use crate::runtime::{Namespaces, Nodes};
use crate::template::{Role, Runtime, WarmUp};
use crate::units::{Rate, Time};

const SECOND_NS: u64 = 1_000_000_000;
/// Most time that the undos at the end of a run may take.
const UNDO: Duration = Duration::from_secs(180);

/// Place of a run in its verification.
pub(crate) struct RunPlace<'a> {
    /// Number of the run, from 1.
    pub(crate) number: u32,
    /// Directory of its results.
    pub(crate) directory: &'a Path,
    /// Directory for its working files, which is removed afterwards.
    pub(crate) work: &'a Path,
    /// Set by SIGINT.
    pub(crate) is_interrupted: &'a AtomicBool,
    /// Undos of changes outside of the lab.
    #[cfg(target_os = "linux")]
    pub(crate) journal: Option<&'a Arc<tenbin_lab::journal::Journal>>,
}

/// Runs `plan` once, and writes the files of the run.
pub(crate) fn perform(setup: &Setup, plan: &Plan, place: &RunPlace<'_>) -> RunVerdict {
    let failed = |error: String| RunVerdict::failed(place.number, plan.seed, error, &plan.assertions);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // The kernel ends a process of the runtime `processes` with the thread that started it.
        .thread_keep_alive(Duration::from_secs(24 * 3600))
        .build();
    let verdict = match runtime {
        Ok(runtime) => {
            let verdict = runtime.block_on(attempt(setup, plan, place));
            runtime.shutdown_background();
            verdict
        }
        Err(error) => Err(format!("cannot start a thread: {error}")),
    };
    remove_empty(&place.directory.join(FILES));
    verdict.unwrap_or_else(failed)
}

/// Removes the directories of instances and clients that left no files.
fn remove_empty(files: &Path) {
    for entry in fs::read_dir(files).into_iter().flatten().flatten() {
        // One with files stays.
        let _ = fs::remove_dir(entry.path());
    }
    let _ = fs::remove_dir(files);
}

async fn attempt(setup: &Setup, plan: &Plan, place: &RunPlace<'_>) -> Result<RunVerdict, String> {
    let logs = place.directory.join(LOGS);
    fs::create_dir_all(&logs).map_err(|error| format!("cannot create {}: {error}", logs.display()))?;
    let write = |name: &str, content: &str| {
        let path = place.directory.join(name);
        fs::write(&path, content).map_err(|error| format!("cannot write {}: {error}", path.display()))
    };
    write("plan.json", &plan.json())?;
    let load = load::load(plan, None)?;
    let world = world(setup, plan, place)?;
    let stage = Arc::new(Stage::new(plan.clone(), world, &logs));
    let starting = Arc::clone(&stage);
    let started = tokio::task::spawn_blocking(move || starting.start_all()).await;
    let result = match started.map_err(|error| error.to_string()).flatten() {
        Ok(()) => with_systems(setup, plan, place, load, &stage).await,
        Err(reason) => Err(reason),
    };
    let result = match result {
        Err(reason) => Err(stage.reason(reason).await),
        result => result,
    };
    let end = move || {
        stage.end_all();
        let fetched = stage.world.lost().map_or_else(|| stage.world.fetch_results(), Err);
        (fetched.err(), stage.world.close())
    };
    let (not_fetched, not_undone) = tokio::task::spawn_blocking(end).await.unwrap_or_default();
    let failed = |error| RunVerdict::failed(place.number, plan.seed, error, &plan.assertions);
    let mut verdict = result.unwrap_or_else(failed);
    verdict.notes.extend(not_fetched.map(|reason| format!("results of {}/ are missing: {reason}", FILES)));
    verdict.not_undone.extend(not_undone);
    Ok(verdict)
}

async fn with_systems(
    setup: &Setup,
    plan: &Plan,
    place: &RunPlace<'_>,
    mut load: LoadPlan,
    stage: &Arc<Stage>,
) -> Result<RunVerdict, String> {
    let mut notes = Vec::new();
    if plan.needs_maximum {
        let maximum = maximum(setup, plan, &load, stage).await?;
        notes.push(format!("the maximum rate was {maximum:.0} msg/s"));
        load = load::load(plan, Some(maximum))?;
        // Messages of the closed loop must not count as messages of the run.
        load.tag = load.tag.wrapping_add(1);
    }
    if plan.clients.iter().any(|client| client.entry.begins_at.is_some()) {
        let asked = Arc::clone(stage);
        let roles = tokio::task::spawn_blocking(move || asked.roles()).await;
        load::begin_at(&mut load, plan, &roles.map_err(|error| error.to_string()).flatten()?)?;
    }
    let path = place.directory.join("events.jsonl");
    let file = File::create(&path).map_err(|error| format!("cannot create {}: {error}", path.display()))?;
    let agents = agents(setup, plan, stage)?;
    let mut running = RunningLoad::prepare(&load, &setup.drivers, agents).await.map_err(text)?;
    let mut faults = Faults::new(plan, Arc::clone(stage), running.clock(), file);
    let sampler = Sampler::start(Arc::clone(stage), place.directory, running.clock())?;
    let watch = Watch::start(stage, running.clock());
    let course = course(plan, place, stage, &mut running, &mut faults, &sampler, &mut notes).await;
    faults.end_all();
    // The clients are closed only after the undos, as a paused one cannot hand over its results.
    let deadline = Instant::now() + UNDO;
    while !faults.is_idle() && Instant::now() < deadline {
        faults.tick();
        if !matches!(running.tick().await, Ok(Some(_))) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let samples = tokio::task::spawn_blocking(move || sampler.finish()).await;
    notes.extend(samples.map_err(|error| error.to_string())?);
    let watched = tokio::task::spawn_blocking(move || watch.finish()).await.map_err(|error| error.to_string())?;
    notes.extend(watched.note());
    let course = match course {
        Ok(course) => course,
        Err(error) => {
            let (error, not_undone) = (stage.reason(error).await, faults.into_results().2);
            let failed = RunVerdict::failed(place.number, plan.seed, error, &plan.assertions);
            return Ok(RunVerdict { not_undone, ..failed });
        }
    };
    let finished = running.finish().await.map_err(text)?;
    verdict(plan, place, course, faults, finished, &watched, notes)
}

/// Times of a run, by its clock.
struct Course {
    start_ns: u64,
    origin_ns: u64,
    /// End of the measurement, from the end of the warm-up.
    end: Time,
    is_interrupted: bool,
    /// Second of the load in which the drain was cut off, if it was.
    cut_off: Option<u64>,
}

/// Warm-up, measurement with all actions, and drain.
async fn course(
    plan: &Plan,
    place: &RunPlace<'_>,
    stage: &Arc<Stage>,
    running: &mut RunningLoad,
    faults: &mut Faults<'_>,
    sampler: &Sampler,
    notes: &mut Vec<String>,
) -> Result<Course, String> {
    let clock = running.clock();
    let start_ns = running.start().await.map_err(text)?;
    let is_scheduled =
        plan.clients.iter().all(|client| client.entry.role == Role::Subscriber || client.entry.rate != Rate::Max);
    let (mut steady, mut looked) = (Steady::new(is_scheduled), 0);
    let mut origin_ns = match plan.measure.warm_up {
        WarmUp::For(time) => Some(start_ns + time.ns().div_ceil(SECOND_NS) * SECOND_NS),
        WarmUp::Steady => None,
    };
    if let Some(origin_ns) = origin_ns {
        sampler.begin_to_measure(origin_ns);
    }
    let mut stopped: Option<Instant> = None;
    // Since when no publisher has anything left to send.
    let mut silent_ns: Option<u64> = None;
    let mut is_interrupted = false;
    let mut end = plan.measure.time;
    let mut cut_off = None;
    loop {
        if let Some(reason) = stage.world.lost() {
            return Err(reason);
        }
        let Some(status) = running.tick().await.map_err(text)? else {
            if stopped.is_none() {
                return Err(ended_early(plan, origin_ns, silent_ns.unwrap_or_else(|| clock.now_ns())));
            }
            break;
        };
        silent_ns = (status.publishing == 0).then(|| silent_ns.unwrap_or_else(|| clock.now_ns()));
        let second = clock.now_ns().saturating_sub(start_ns) / SECOND_NS;
        if second > looked {
            looked = second;
            for (name, end) in stage.ended_by_themselves() {
                notes.push(format!("{name} ended by itself, by {end}; see logs/{name}.log"));
            }
            let most = plan.measure.warm_up.most();
            if origin_ns.is_none() && (steady.look(status) || Time::from_secs(second) >= most) {
                if Time::from_secs(second) >= most {
                    notes.push(format!("the system was not steady after {most}"));
                }
                // The load's seconds stay whole.
                let origin = start_ns + (second + 1) * SECOND_NS;
                origin_ns = Some(origin);
                sampler.begin_to_measure(origin);
            }
        }
        if let Some(origin_ns) = origin_ns.filter(|origin_ns| *origin_ns <= clock.now_ns()) {
            faults.begin_to_measure(origin_ns);
        }
        faults.tick();
        let now = origin_ns.and_then(|origin_ns| clock.now_ns().checked_sub(origin_ns)).map(Time::from_ns);
        let is_over = now.is_some_and(|now| now >= plan.measure.time);
        is_interrupted |= place.is_interrupted.load(Ordering::Relaxed);
        match stopped {
            None if is_over || is_interrupted => {
                if let Some(since_ns) = silent_ns.filter(|_| !is_interrupted) {
                    return Err(ended_early(plan, origin_ns, since_ns));
                }
                stopped = Some(Instant::now());
                end = now.unwrap_or_default().min(plan.measure.time);
                running.stop_publishing().await.map_err(text)?;
                faults.end_all();
            }
            Some(at) if at.elapsed() > plan.measure.drain.duration() && faults.is_idle() => {
                cut_off = Some(second);
                break;
            }
            _ => {}
        }
    }
    // Without a second of measurement all of the warm-up counts, which is better than nothing after an interrupt.
    Ok(Course { start_ns, origin_ns: origin_ns.unwrap_or(start_ns), end, is_interrupted, cut_off })
}

/// Error of a load that ended at `end_ns` although nothing stopped it.
fn ended_early(plan: &Plan, origin_ns: Option<u64>, end_ns: u64) -> String {
    let publisher = plan.clients.iter().find(|client| client.entry.role == Role::Publisher);
    let name = publisher.map_or("the publishers", |client| client.entry.name.as_str());
    match origin_ns {
        Some(origin_ns) => {
            let left_ns = (origin_ns + plan.measure.time.ns()).saturating_sub(end_ns);
            format!("{name} ended {:.1} s before the end of the measurement", Time::from_ns(left_ns).secs())
        }
        None => format!("{name} ended before the measurement began"),
    }
}

/// Note that lost messages may only be late, if messages still arrived when the drain was cut off in `second`.
fn late(drain: Time, second: u64, lost: u64, last_arrival: Option<u32>) -> Option<String> {
    let still_arrived = last_arrival.is_some_and(|last| u64::from(last) + 2 >= second);
    (still_arrived && lost > 0)
        .then(|| format!("messages still arrived when the drain of {drain} ended, so that lost ones may only be late"))
}

fn verdict(
    plan: &Plan,
    place: &RunPlace<'_>,
    course: Course,
    faults: Faults<'_>,
    finished: Finished,
    watched: &Watched,
    mut notes: Vec<String>,
) -> Result<RunVerdict, String> {
    // On one host all clocks are the same.
    let is_of_note = |note: &&String| plan.runtime == Runtime::Ssh || !note.starts_with("clock of agent");
    notes.extend(finished.outcome.notes.iter().filter(is_of_note).cloned());
    let arrivals = finished.outcome.per_second.iter().filter(|second| second.received > 0);
    let (lost, last_arrival) = (finished.outcome.verdict.lost, arrivals.map(|second| second.second).max());
    notes.extend(course.cut_off.and_then(|second| late(plan.measure.drain, second, lost, last_arrival)));
    let idle = faults.is_idle();
    let (events, failed, mut not_undone) = faults.into_results();
    if !idle {
        not_undone.push(format!("an undo was not complete after {} s", UNDO.as_secs()));
    }
    let load_cpu_seconds = finished.outcome.own_cpu_seconds;
    let has_losses = plan.clients.iter().all(|client| client.protocol.counts_losses());
    let measured = Measured::of(finished, course.start_ns, course.origin_ns, has_losses);
    let effects = Event::effects(&events, course.end);
    let windows = windows(&effects, plan.measure.before, course.end);
    let mut figures = Figures::of(&measured, &windows);
    leaders::add(&mut figures, &watched.led(course.origin_ns), &windows);
    // A system that takes nothing also loses nothing; that must not pass.
    let is_vacuous = figures.get(&Phase::Whole, Figure::PublishedMessages) == Some(0.0);
    let mut verdict = RunVerdict::new(place.number, plan.seed, &windows, figures, &plan.assertions);
    verdict.load_cpu_seconds = Some(load_cpu_seconds);
    verdict.notes = notes;
    verdict.not_undone = not_undone;
    verdict.error = match (course.is_interrupted, failed.is_empty()) {
        (true, _) => Some(format!("interrupted after {}", course.end)),
        (false, false) => Some(failed.join("; ")),
        (false, true) => {
            is_vacuous.then(|| "no message was acknowledged in all of the measurement; see the logs".to_owned())
        }
    };
    results::write_seconds(&place.directory.join("seconds.csv"), measured.seconds(), measured.details())
        .and_then(|()| watched.write(place.directory, course.origin_ns))
        .map_err(|error| format!("cannot write the results: {error}"))?;
    Ok(verdict)
}

/// Rate that a closed loop reaches: the mean of its second half.
async fn maximum(setup: &Setup, plan: &Plan, load: &LoadPlan, stage: &Arc<Stage>) -> Result<f64, String> {
    let agents = agents(setup, plan, stage)?;
    let mut running = RunningLoad::prepare(load, &setup.drivers, agents).await.map_err(text)?;
    running.start().await.map_err(text)?;
    while running.elapsed() < plan.measure.max.duration() {
        if running.tick().await.map_err(text)?.is_none() {
            return Err(ended_early(plan, None, 0));
        }
    }
    running.stop_publishing().await.map_err(text)?;
    while running.tick().await.map_err(text)?.is_some() {}
    let finished = running.finish().await.map_err(text)?;
    let seconds = (plan.measure.max.secs() as usize).max(1);
    let half = finished.outcome.per_second.iter().take(seconds).skip(seconds / 2);
    let published = half.map(|second| second.published).collect::<Vec<_>>();
    Ok(published.iter().sum::<u64>() as f64 / published.len().max(1) as f64)
}

fn world(setup: &Setup, plan: &Plan, place: &RunPlace<'_>) -> Result<Box<dyn World>, String> {
    let site = Site {
        work: place.work,
        results: place.directory,
        programs: &setup.programs(),
        #[cfg(target_os = "linux")]
        journal: place.journal,
    };
    match plan.runtime {
        Runtime::Processes => Ok(Box::new(Processes::new(&site))),
        #[cfg(target_os = "linux")]
        Runtime::Namespaces | Runtime::Docker => Ok(Box::new(Namespaces::start(plan, &site, None)?)),
        #[cfg(target_os = "linux")]
        Runtime::Ssh => Ok(Box::new(Nodes::start(plan, &site)?)),
        #[cfg(not(target_os = "linux"))]
        other => Err(format!("this version cannot run with runtime {}", other.name())),
    }
}

/// One agent for each entry of clients, on its machine. None without this program: then all clients are in this process.
fn agents(setup: &Setup, plan: &Plan, stage: &Stage) -> Result<Vec<AgentStream>, String> {
    if setup.program.is_none() {
        return match plan.clients.iter().find(|client| client.entry.program != plan.clients[0].entry.program) {
            None => Ok(Vec::new()),
            Some(client) => {
                Err(format!("{} has another program, which needs the program tenbin-verify", client.entry.name))
            }
        };
    }
    let mut agents = Vec::new();
    for client in &plan.clients {
        let line = stage.world.programs(&client.machine).verify(["agent", "--stdio"]).on(&client.entry.placing.cpus);
        let line = Line { environment: stage.environment(client)?, ..line };
        let started = stage.world.spawn_with_stream(&client.machine, &line, &stage.log(&client.entry.name));
        let (process, stream) = started.map_err(|reason| format!("{}: {reason}", client.entry.name))?;
        stage.add_client(&client.entry.name, process);
        let stream = stream.set_nonblocking(true).and_then(|()| tokio::net::UnixStream::from_std(stream));
        let stream = stream.map_err(|error| format!("{}: cannot use its stream: {error}", client.entry.name))?;
        let (reader, writer) = stream.into_split();
        let agent = AgentStream::new(&client.entry.name, reader, writer);
        let agent = agent.with_clients(load::kinds(plan, client)).that_may_pause();
        agents.push(match load::own_protocol(plan, client) {
            None => agent,
            Some((protocol, settings)) => agent.with_protocol(protocol, settings),
        });
    }
    Ok(agents)
}

fn text(error: LoadgenError) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_messages_may_be_late_while_others_arrive() {
        let late = |lost, last| late(Time::from_secs(30), 60, lost, last);
        assert!(late(5, Some(59)).is_some_and(|note| note.contains("drain of 30 s")));
        assert_eq!((late(5, Some(40)), late(5, None), late(0, Some(59))), (None, None, None));
    }
}
