{#- Written by `lakehouse scaffold`, its own while unchanged: c1ae7015a68bdfa1 -#}
{{ cdc_vault.timeline(source_model='sts_transaction_item', src_pk='hk_transaction_item', src_hashdiff='hd_status') }}
