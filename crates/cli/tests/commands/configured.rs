//! `entity`, `limits` and `status`: stored data, and the sources of a bucket's limits.

use serde_json::{Value, json};

use crate::support::on_every_engine;

#[tokio::test(flavor = "multi_thread")]
async fn entities_name_their_parents_and_children() {
    on_every_engine(async |shell| {
        shell.run("entity show child").error(1);
        shell.run("entity create child --parent team --cascade").text(0);
        shell.run("entity create other --parent team").text(0);
        let shown = shell.run("entity show child --output json").json(0);
        assert_eq!(shown, json!({"entity": "child", "parent": "team", "cascade": true}));
        assert_eq!(shell.run("entity children team").text(0), "child\nother\n");
        assert_eq!(shell.run("entity children child --output json").json(0), json!([]));

        // Both buckets, because the record says so; or the child's alone.
        let acquire = |words: &str| {
            let answer = shell
                .run(&format!("acquire {words} r --consume rpm=1 --limit rpm=5/d --output json"))
                .json(0);
            let limits = answer["limits"].as_array().unwrap().clone();
            limits.iter().map(|limit| limit["entity"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(acquire("child"), ["child", "team"]);
        assert_eq!(acquire("child --no-cascade"), ["child"]);
        assert_eq!(acquire("other"), ["other"]);
        assert_eq!(acquire("other --cascade"), ["other", "team"]);
        let orphan = shell.run("acquire team r --consume rpm=1 --cascade");
        assert!(orphan.error(2).contains("entity create team --parent"), "{}", orphan.err);

        assert!(shell.run("entity delete child").error(2).contains("--yes"));
        shell.run("entity delete child --yes").text(0);
        shell.run("entity delete child --yes").error(1);
        let flat = shell.run("entity create child --parent team --cascade");
        assert!(flat.err.is_empty(), "{}", flat.err);
        shell.run("entity create team --parent firm --cascade").text(0);
        let nested = shell.run("entity create child --parent team --cascade");
        assert!(nested.err.contains("team has a parent itself, firm"), "{}", nested.err);
        assert_eq!(acquire("child"), ["child", "team"]);
        let own = shell.run("entity create team --parent team");
        assert!(own.error(2).contains("its own parent"), "{}", own.err);
        assert_eq!(shell.run("entity create team --parent #").code, 2);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_stored_shown_and_deleted() {
    on_every_engine(async |shell| {
        shell.run("limits show --system").error(1);
        for level in ["--system", "--resource r", "--entity u", "--entity u --resource r"] {
            shell.run(&format!("limits set {level} rpm=100/min tpm=1000/h,burst=1500")).text(0);
            let shown = shell.run(&format!("limits show {level} --output json")).json(0);
            assert_eq!(shown["limits"], json!(["rpm=100/min", "tpm=1000/h,burst=1500"]), "{level}");
            let unknown = shell.run(&format!("limits delete {level} rpm other --yes"));
            assert!(unknown.error(1).contains("no limit other"), "{}", unknown.err);
            assert!(unknown.err.contains(&format!("`sluicegate limits show {level}`")));
            assert!(shell.run(&format!("limits delete {level} rpm")).error(2).contains("--yes"));
            shell.run(&format!("limits delete {level} rpm --yes")).text(0);
            let shown = shell.run(&format!("limits show {level}"));
            assert!(shown.text(0).ends_with("\ntpm=1000/h,burst=1500\n"), "{}", shown.out);
            shell.run(&format!("limits delete {level} --all --yes")).text(0);
            shell.run(&format!("limits show {level}")).error(1);
        }
        for bad in [
            "limits set rpm=1/min",
            "limits set --system rpm=1",
            "limits set --system --entity u rpm=1/min",
            "limits set --system rpm=1/min rpm=2/min",
        ] {
            assert_eq!(shell.run(bad).code, 2, "{bad}");
        }
        // The error names every way to go on.
        for (short, ways) in [
            ("limits set rpm=1/min", "<--system|--entity <NAME>|--resource <NAME>>"),
            ("limits show", "<--system|--entity <NAME>|--resource <NAME>>"),
            ("status", "<ENTITY|--resource <RESOURCE>>"),
        ] {
            let said = shell.run(short);
            assert!(said.code == 2 && said.err.contains(ways), "{short}: {}", said.err);
        }
    })
    .await;
}

fn of<'a>(standings: &'a Value, entity: &str, limit: &str) -> &'a Value {
    let found = standings.as_array().unwrap().iter();
    let mut found = found.filter(|row| row["entity"] == entity && row["limit"] == limit);
    found.next().unwrap_or_else(|| panic!("no {limit} of {entity} in {standings:#}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn status_shows_balances_and_the_level_of_each_limit() {
    on_every_engine(async |shell| {
        let nothing = shell.run("status u r");
        assert!(nothing.error(1).contains("sluicegate acquire"), "{}", nothing.err);
        shell.run("limits set --system a=100/never b=100/never c=100/never d=100/never").text(0);
        shell.run("limits set --resource r b=200/never c=200/never d=200/never").text(0);
        shell.run("limits set --entity u c=300/never d=300/never").text(0);
        shell.run("limits set --entity u --resource r d=400/never").text(0);
        // Never used: the status is that of a new bucket.
        let status = shell.run("status u r --output json").json(0);
        assert_eq!(of(&status, "u", "d")["available_milli"], 400_000);

        shell.run("acquire u r --consume a=10 --consume e=1 --limit e=50/d").text(0);
        shell.run("acquire v r --consume a=1").text(0);
        shell.run("acquire u s --consume a=1").text(0);
        let status = shell.run("status u r --output json").json(0);
        let froms: Vec<_> =
            ["a", "b", "c", "d", "e"].map(|limit| of(&status, "u", limit)["from"].clone()).into();
        assert_eq!(froms, ["system", "resource", "entity", "entity+resource", "request"]);
        let a = of(&status, "u", "a");
        assert_eq!(
            (&a["available_milli"], &a["burst_milli"], &a["consumed_milli"]),
            (&json!(90_000), &json!(100_000), &json!(10_000))
        );
        assert_eq!(
            (&a["full_in_ms"], &of(&status, "u", "b")["full_in_ms"]),
            (&json!(null), &json!(0))
        );
        let full_in = of(&status, "u", "e")["full_in_ms"].as_u64().unwrap();
        assert!((1..=1_728_000).contains(&full_in), "one of fifty a day: {full_in}");
        assert_eq!(of(&status, "u", "e")["rule"], "e=50/d");

        let entities = |words: &str| {
            let status = shell.run(&format!("status {words} --output json")).json(0);
            let mut buckets: Vec<_> = status
                .as_array()
                .unwrap()
                .iter()
                .map(|row| {
                    format!(
                        "{} {}",
                        row["entity"].as_str().unwrap(),
                        row["resource"].as_str().unwrap()
                    )
                })
                .collect();
            buckets.dedup();
            buckets
        };
        assert_eq!(entities("u"), ["u r", "u s"]);
        assert_eq!(entities("--resource r"), ["u r", "v r"]);
        let shown = shell.run("status u s");
        let row: Vec<_> = shown.text(0).lines().nth(2).unwrap().split_whitespace().collect();
        assert_eq!(row, ["u", "s", "a", "99", "100", "never", "a=100/never", "system"]);

        // A change that the bucket has not followed yet.
        shell.run("limits set --system a=70/never").text(0);
        let a = of(&shell.run("status u r --output json").json(0), "u", "a").clone();
        assert_eq!(
            (&a["rule"], &a["now"], &a["available_milli"]),
            (&json!("a=70/never"), &json!("a=100/never"), &json!(60_000))
        );
        // A limit that is no longer named anywhere.
        shell.run("limits delete --system a --yes").text(0);
        let a = of(&shell.run("status u r --output json").json(0), "u", "a").clone();
        assert_eq!((&a["from"], &a["rule"]), (&json!("deleted"), &json!("a=100/never")));
        for bad in ["status", "status u r x", "status u --resource r"] {
            assert_eq!(shell.run(bad).code, 2, "{bad}");
        }
    })
    .await;
}
