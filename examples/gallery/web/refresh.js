// While jobs are pending, fetch the page again every second and put its living
// part in place of the old one.
async function refresh() {
	const live = document.getElementById("live");
	if (live.dataset.pending !== "true") return;
	try {
		const answer = await fetch(location.pathname);
		const text = answer.ok && await answer.text();
		const next = text && new DOMParser().parseFromString(text, "text/html").getElementById("live");
		if (next) live.replaceWith(document.adoptNode(next));
	} catch {
		// The server is away; the next round will tell whether it came back.
	}
	setTimeout(refresh, 1000);
}
setTimeout(refresh, 500);
