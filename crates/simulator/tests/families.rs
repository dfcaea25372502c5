//! Output of `tenbin-simulate families`.

use clap::Parser;
use tenbin_simulator::{SimulateArgs, run_to};

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    args: SimulateArgs,
}

fn output(options: &str) -> String {
    let fixed = "simulate families --each 1 --family stock,unknown_threads --policy early_binding,least_inflight";
    let args = Program::parse_from(fixed.split(' ').chain(options.split_whitespace())).args;
    let mut out = Vec::new();
    run_to(&args, &mut out).expect("the families can be simulated");
    String::from_utf8(out).expect("a table is text")
}

/// The lines about a family: its ratios, and what telling the concurrency changes.
fn lines(out: &str, family: &str) -> [Vec<String>; 2] {
    let lines = out.lines().filter(|line| line.trim_start().starts_with(&format!("{family} ")));
    let mut words = lines.map(|line| line.split_whitespace().map(str::to_owned).collect());
    [words.next().expect("ratios"), words.next().expect("told and not told")]
}

#[test]
fn told_and_untold_are_compared_whichever_is_in_the_table() {
    let (untold, told) = (output(""), output("--told yes"));
    for (family, is_learnt) in [("stock", true), ("unknown_threads", false)] {
        let ([untold_ratios, untold_change], [told_ratios, told_change]) =
            (lines(&untold, family), lines(&told, family));
        assert_eq!(untold_ratios[2] == told_ratios[2], is_learnt, "{family}: {untold_ratios:?}, told {told_ratios:?}");
        assert_eq!(untold_change, told_change);
    }
    assert_eq!(output("--told no"), untold, "these families tell nothing");
    assert!(untold.contains("adaptive loses to the best of its rivals by more than 5 % in"));
}
