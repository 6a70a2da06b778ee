//! `acquire` and `adjust`: decisions, exit codes, balances.

use serde_json::{Value, json};

use crate::support::on_every_engine;

const LIMITS: &str = "--limit rpm=2/d --limit tpm=1500/never";

/// `(entity, limit, asked, available, violated)` of every limit.
fn standings(answer: &Value) -> Vec<Value> {
    let of = |limit: &Value| {
        json!([
            limit["entity"],
            limit["limit"],
            limit["asked_milli"],
            limit["available_milli"],
            limit["violated"]
        ])
    };
    answer["limits"].as_array().unwrap().iter().map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_that_nobody_reads_is_one_all_the_same() {
    on_every_engine(async |shell| {
        let acquire = "acquire u r --consume rpm=2 --limit rpm=2/d";
        shell.run(acquire).text(0);
        for output in ["table", "json"] {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let mut command = shell.command();
            command.args(acquire.split(' ')).args(["--output", output]).stdout(writer);
            let status = tokio::task::block_in_place(|| command.status().unwrap());
            assert_eq!(status.code(), Some(3), "{output}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_decision_has_its_exit_code_and_its_json() {
    on_every_engine(async |shell| {
        let acquire =
            |asked: &str| shell.run(&format!("acquire u r {asked} {LIMITS} --output json"));
        let answer = acquire("--consume rpm=2 --consume tpm=400.5").json(0);
        assert_eq!((&answer["granted"], &answer["retry_after_ms"]), (&json!(true), &json!(null)));
        let mut limits = standings(&answer);
        // Two a day are a thousandth of a token every 43 s.
        let refilled = limits[0][3].take();
        assert!(refilled.as_u64().is_some_and(|milli| milli < 10), "{refilled}");
        assert_eq!(
            limits,
            [
                json!(["u", "rpm", 2_000, null, false]),
                json!(["u", "tpm", 400_500, 1_099_500, false])
            ]
        );
        assert_eq!(answer["limits"][1]["burst_milli"], 1_500_000);

        let answer = acquire("--consume rpm=1 --consume tpm=1").json(3);
        assert_eq!(answer["granted"], false);
        // One of two a day, less the time of the test so far.
        let wait = answer["retry_after_ms"].as_u64().unwrap();
        assert!((43_000_000..=43_200_000).contains(&wait), "{wait}");
        let violated: Vec<_> =
            answer["limits"].as_array().unwrap().iter().map(|l| l["violated"].clone()).collect();
        assert_eq!(violated, [true, false]);

        let answer = acquire("--consume rpm=1 --consume tpm=2000").json(4);
        let violated: Vec<_> =
            answer["limits"].as_array().unwrap().iter().map(|l| l["violated"].clone()).collect();
        assert_eq!(
            (violated, answer["retry_after_ms"].clone()),
            (vec![json!(false), json!(true)], json!(null))
        );

        for asked in [
            "--consume rpm",
            "--consume rpm=0",
            "--consume rpm=-1",
            "--consume rpm=1 --consume rpm=2",
            "--consume rpm=1 --limit rpm=5",
            "",
        ] {
            let said = acquire(asked);
            assert_eq!(said.code, 2, "{asked}: {}", said.err);
            assert_eq!(said.out, "");
        }
        let unknown = shell.run("acquire u r --consume other=1");
        assert!(unknown.error(2).contains("unknown limit other"), "{}", unknown.err);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn people_read_what_is_left_and_when_to_come_back() {
    on_every_engine(async |shell| {
        let acquire = || shell.run(&format!("acquire u r --consume rpm=2 {LIMITS}"));
        let granted = acquire();
        let lines: Vec<&str> = granted.text(0).lines().collect();
        assert_eq!(lines[0], "granted");
        let row: Vec<_> = lines[4].split_whitespace().collect();
        assert!(row[3].parse::<f64>().unwrap() < 0.01, "{}", lines[4]);
        assert_eq!((&row[..3], row[4]), (&["u", "rpm", "2"][..], "2"));
        let refused = acquire();
        let first = refused.text(3).lines().next().unwrap();
        assert!(
            first.starts_with("limit exceeded: ask again in 23 h 59 min")
                || first.starts_with("limit exceeded: ask again in 1 d"),
            "{first}"
        );
        let never = shell.run("acquire u r --consume rpm=3 --limit rpm=2/d");
        assert!(never.text(4).starts_with("never admissible"), "{}", never.out);
        let quota = || shell.run("acquire q r --consume usd=5 --limit usd=5/never");
        quota().text(0);
        assert!(quota().text(3).starts_with("limit exceeded: it does not refill"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_come_in_time_are_waited_for() {
    on_every_engine(async |shell| {
        let acquire =
            |wait: &str| shell.run(&format!("acquire u r --consume rps=1 --limit rps=1/s{wait}"));
        acquire("").text(0);
        acquire(" --wait 20").text(0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adjustment_takes_and_gives_back() {
    on_every_engine(async |shell| {
        let left = || shell.run("acquire u r --consume rpm=1 --limit rpm=100/never --output json");
        let available = |answer: &Value| answer["limits"][0]["available_milli"].as_i64().unwrap();
        shell.run("adjust u r rpm=+60 --limit rpm=100/never").text(0);
        assert_eq!(available(&left().json(0)), 39_000);
        shell.run("adjust u r rpm=-30.5").text(0);
        assert_eq!(available(&left().json(0)), 68_500);
        let answer = shell.run("adjust u r rpm=100 --output json").json(0);
        assert_eq!((&answer["adjusted"], &answer["dropped"]), (&json!(true), &json!([])));
        assert_eq!(available(&left().json(3)), -31_500, "a debt");

        // A stored limit that the bucket does not follow yet.
        shell.run("limits set --system usd=5/never").text(0);
        let answer = shell.run("adjust u r usd=1 --output json").json(1);
        assert_eq!((&answer["adjusted"], &answer["dropped"]), (&json!(false), &json!(["usd"])));

        let part = shell.run("adjust u r usd=1 rpm=-1");
        let missing = "adjusted, except for usd of u (the bucket does not have it yet";
        assert!(part.text(1).starts_with(missing), "{}", part.out);
        assert_eq!(available(&left().json(3)), -30_500, "corrected once");

        let unknown = shell.run("adjust u r tpm=1");
        assert!(unknown.error(2).contains("unknown limit tpm"), "{}", unknown.err);
        // An estimate that was exact is no mistake of a script.
        assert_eq!(shell.run("adjust u r rpm=+0").text(0), "nothing to adjust\n");
        assert_eq!(shell.run("adjust u r").code, 2);
    })
    .await;
}
