"""What every experiment uses: claims, drawings, reports."""
