{#- Written by `lakehouse scaffold`, its own while unchanged: 2d63201aab814b21 -#}
{{ cdc_vault.timeline(source_model='sts_account', src_pk='hk_account', src_hashdiff='hd_status') }}
