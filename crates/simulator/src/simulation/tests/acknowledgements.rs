//! When acknowledgements arrive at the broker.

use std::{cell::RefCell, rc::Rc};

use super::*;
use crate::plan::{Message, WorkerPlan};

/// Sends each message to the first worker at once, and notes when acknowledgements arrive.
struct Recorder(Rc<RefCell<Vec<f64>>>);

impl Rule for Recorder {
    fn join(&mut self, _worker: usize, _plan: &WorkerPlan<'_>, _now: Nanos) {}

    fn leave(&mut self, _worker: usize) {}

    fn pick(&mut self, _message: &Message, _waiting: usize, _now: Nanos) -> Option<usize> {
        Some(0)
    }

    fn acknowledged(&mut self, _worker: usize, _feedback: &Feedback, now: Nanos) {
        self.0.borrow_mut().push(((now.0 - IDLE_NS) / 1000) as f64 / 1000.0);
    }
}

/// Times of acknowledgements at the broker, in ms after the first message, of messages that arrive at a fixed interval.
fn acknowledged_ms(messages: u32, every: &str, worker: &str) -> Vec<f64> {
    acknowledged(messages, &format!("{{ fixed = \"{every}\" }}"), worker)
}

/// As [`acknowledged_ms`], with any arrivals.
fn acknowledged(messages: u32, arrivals: &str, worker: &str) -> Vec<f64> {
    let text = format!("messages = {messages}\narrivals = {arrivals}\n[[workers]]\nservice = \"100ms\"\n{worker}");
    let scenario = Scenario::parse("test", &text).unwrap();
    let plan = Plan::new(&scenario, 1);
    let times = Rc::default();
    let mut simulation = Simulation::new(&plan, true, ROUND_ROBIN, &Arc::default());
    simulation.rule = Some(Box::new(Recorder(Rc::clone(&times))));
    // The messages are finished before their last acknowledgements arrive.
    simulation.open.left = usize::MAX;
    simulation.run_until(Nanos(60_000_000_000));
    times.take()
}

#[test]
fn habits_decide_when_acknowledgements_are_written() {
    let habit = |habit: &str| acknowledged_ms(5, "1us", &format!("delay = \"0s\"\nacknowledges = {habit}"));
    assert_eq!(habit("\"after_processing\""), [100.0, 200.0, 300.0, 400.0, 500.0]);
    assert_eq!(habit("\"on_arrival\"").into_iter().map(f64::round).collect::<Vec<_>>(), [0.0; 5]);
    assert_eq!(habit("\"after_next_read\""), [200.0, 200.0, 400.0, 400.0, 500.0]);
    assert_eq!(habit("{ batched = { messages = 3 } }"), [300.0; 3]);
    assert_eq!(habit("{ batched = { messages = 3, within = \"50ms\" } }"), [150.0, 250.0, 350.0, 450.0, 550.0]);
    assert_eq!(habit("{ batched = { messages = 3, within = \"150ms\" } }"), [250.0, 250.0, 450.0, 450.0, 650.0]);
}

#[test]
fn paho_acknowledges_at_once_without_another_message() {
    let apart = acknowledged_ms(3, "1s", "delay = \"0s\"\nacknowledges = \"after_next_read\"");
    assert_eq!(apart, [100.0, 1100.0, 2100.0]);
}

#[test]
fn threads_acknowledge_in_order_of_completion_or_receipt() {
    let habit = |habit: &str| {
        let distribution = "distribution = { outliers = { share = 0.3, times = 9 } }";
        let times = acknowledged_ms(20, "1us", &format!("threads = 4\n{distribution}\nacknowledges = \"{habit}\""));
        times.iter().sum::<f64>() / times.len() as f64
    };
    let (any_order, in_order) = (habit("completion_order"), habit("after_processing"));
    assert!(any_order < 0.9 * in_order, "{any_order} against {in_order}");
}

#[test]
fn hidden_delay_counts_in_both_directions() {
    let ways = |hidden: &str| acknowledged_ms(1, "1s", &format!("delay = \"1ms\"\n{hidden}"));
    assert_eq!(ways(""), [102.0]);
    assert_eq!(ways("hidden = \"10ms\""), [122.0]);
}

#[test]
fn acknowledgements_have_jitter_of_their_own() {
    let times = acknowledged_ms(100, "200ms", "delay = \"20ms\"\njitter = 0.5");
    let round_trips: Vec<_> = (0..100).map(|number| times[number] - 200.0 * number as f64 - 100.0).collect();
    let (least, most) =
        round_trips.iter().fold((f64::MAX, 0.0_f64), |(least, most), &ms| (least.min(ms), most.max(ms)));
    assert!((20.0..30.0).contains(&least) && (50.0..60.0).contains(&most), "{least} to {most}");
    let middle = round_trips.iter().filter(|&&ms| (30.0..50.0).contains(&ms)).count();
    assert!(middle > 60, "two ways seldom have the same deviation: {middle}");
}

/// The workers are connected for this long before the first message.
const IDLE_NS: u64 = 1_000_000_000;

/// On a socket, stock paho for Python acknowledged three messages of 100 ms after 201, 244 and 302 ms.
#[test]
fn nagle_holds_an_acknowledgement_until_the_last_is_confirmed() {
    let paho = "delay = \"0.5ms\"\nacknowledges = \"after_next_read\"";
    let times = |nagle| acknowledged_ms(3, "1us", &format!("{paho}\nnagle = {nagle}"));
    assert_eq!(times(false), [201.0, 201.0, 301.0]);
    assert_eq!(times(true), [201.0, 242.0, 301.0]);
}

#[test]
fn next_message_confirms_an_acknowledgement() {
    let arrivals = |every: &str| format!("{{ bursts = {{ messages = 2, every = \"{every}\" }} }}");
    let worker = "delay = \"0.5ms\"\nacknowledges = \"after_next_read\"\nnagle = true";
    let second = |every: &str, path: &str| acknowledged(4, &arrivals(every), &format!("{worker}\n{path}"))[1];
    assert_eq!(second("205ms", ""), 206.0, "sent after the first arrived");
    assert_eq!(second("200.9ms", ""), 242.0, "sent before");
    assert_eq!(second("200.9ms", "hidden = \"0.1ms\""), 202.1, "a proxy has confirmed it");
}
