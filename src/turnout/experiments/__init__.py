"""The paper's figures and claims, computed again: plans, findings, drawings, reports."""
