"""REST: `POST /eval`, evaluate how well labelled messages find their tools in the user's catalogue."""

from fastapi import APIRouter

from app.api.strict_route import StrictRoute
from app.dependencies import ContainerDep, DiscoverCaller
from app.evaluation.evaluate import EvalOptions, evaluate
from app.evaluation.lint import lint_descriptions
from app.schemas.evaluation import MAX_EXPLAINED, MAX_PROBED, EvalBody, EvalOut, render_evaluation

router = APIRouter(tags=["discovery"], route_class=StrictRoute)


@router.post("/eval", name="evaluate")
async def post_eval(body: EvalBody, caller: DiscoverCaller, container: ContainerDep) -> EvalOut:
    """Evaluate how well these messages find their tools, and explain the misses."""
    items = [item.to_item(str(number)) for number, item in enumerate(body.items, start=1)]
    options = EvalOptions(body.limit, body.project_id, MAX_EXPLAINED)
    evaluation = await evaluate(container.discoverer, caller, items, options)
    suggestions = None
    if body.suggest:
        suggestions = await lint_descriptions(
            container.discoverer, caller, project_id=body.project_id, max_probed=MAX_PROBED
        )
    return render_evaluation(evaluation, suggestions)
